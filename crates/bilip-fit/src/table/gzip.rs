//! Compressed files.

use std::io::Read;

use flate2::bufread::MultiGzDecoder;

use crate::error::{Error, Result, ensure};

/// What a gzip file begins with.
pub(super) const MAGIC: &[u8] = b"\x1f\x8b";

/// The most bytes that a file may unpack to: a few kilobytes can claim to be terabytes.
pub(super) const MOST_BYTES: u64 = 8 << 30;

/// The contents of a gzip file, of all its members.
pub(super) fn unpacked(bytes: &[u8], source: &str, most: u64) -> Result<Vec<u8>> {
    let mut contents = Vec::new();
    MultiGzDecoder::new(bytes)
        .take(most + 1)
        .read_to_end(&mut contents)
        .map_err(|_| Error::Data(format!("{source}: the gzip file is damaged or cut short")))?;
    ensure!(
        contents.len() as u64 <= most,
        "{source}: unpacks to more than {} MiB, the limit",
        most >> 20
    );
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn members_are_joined_and_damage_and_bombs_are_errors() {
        let both = [packed(b"a,b\n"), packed(b"1,2\n")].concat();
        assert_eq!(unpacked(&both, "x", 100).unwrap(), b"a,b\n1,2\n");
        let one = packed(b"a,b\n1,2\n");
        let error = unpacked(&one[..one.len() - 6], "x.gz", 100)
            .unwrap_err()
            .to_string();
        assert_eq!(error, "x.gz: the gzip file is damaged or cut short");
        let bomb = packed(&vec![b'1'; 3 << 20]);
        assert!(bomb.len() < 10_000);
        let error = unpacked(&bomb, "x.gz", 2 << 20).unwrap_err().to_string();
        assert_eq!(error, "x.gz: unpacks to more than 2 MiB, the limit");
        assert!(unpacked(&bomb, "x.gz", 3 << 20).is_ok());
    }
}
