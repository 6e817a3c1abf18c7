//! Where a model is trained.

use std::fmt;
use std::str::FromStr;

use burn::backend::{Autodiff, Flex};
use burn::tensor::backend::AutodiffBackend;

use super::{Error, Result};

/// A processor that models are trained on: `cpu`, `cuda`, `cuda:1`, `wgpu`.
///
/// Which of them a program knows depends on the features of this crate, which of them are there on
/// the machine; see [`check`](Self::check). Results are the same up to rounding, and certificates
/// always come from the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// All cores.
    #[default]
    Cpu,
    /// The NVIDIA GPU of this number (feature `cuda`).
    Cuda(usize),
    /// The default GPU of Vulkan, Metal or DirectX 12 (feature `wgpu`).
    Wgpu,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(0) => f.write_str("cuda"),
            Device::Cuda(index) => write!(f, "cuda:{index}"),
            Device::Wgpu => f.write_str("wgpu"),
        }
    }
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let unknown = || Error::device(text, "must be cpu, cuda, cuda:N for the GPU of number N, or wgpu");
        match text.split_once(':') {
            None => match text {
                "cpu" => Ok(Device::Cpu),
                "cuda" => Ok(Device::Cuda(0)),
                "wgpu" => Ok(Device::Wgpu),
                _ => Err(unknown()),
            },
            Some(("cuda", index)) => index.parse().map(Device::Cuda).map_err(|_| unknown()),
            Some(_) => Err(unknown()),
        }
    }
}

/// Work that can be done on the backend of any device.
///
/// Backends are types; this is how a choice made at run time becomes one.
pub trait OnDevice {
    /// What comes of it.
    type Output;

    /// Does the work.
    fn run<B: AutodiffBackend>(self, device: &B::Device) -> Self::Output;
}

impl Device {
    /// Does the work on this device.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn run<W: OnDevice>(self, work: W) -> Result<W::Output> {
        self.check()?;
        match self {
            Device::Cpu => Ok(work.run::<Autodiff<Flex>>(&Default::default())),
            #[cfg(feature = "cuda")]
            Device::Cuda(index) => {
                Ok(work.run::<Autodiff<burn::backend::Cuda>>(&burn::backend::cuda::CudaDevice { index }))
            }
            #[cfg(feature = "wgpu")]
            Device::Wgpu => Ok(work.run::<Autodiff<burn::backend::Wgpu>>(&Default::default())),
            #[allow(unreachable_patterns)]
            other => Err(other.missing()),
        }
    }

    /// Whether the device can be used by this program on this machine.
    ///
    /// # Errors
    /// When the program was built without it, or the machine has none or lacks a library; the
    /// message says which.
    pub fn check(self) -> Result<()> {
        match self {
            Device::Cpu => Ok(()),
            #[cfg(feature = "cuda")]
            Device::Cuda(index) => cuda::check(index).map_err(|reason| Error::device(self, reason)),
            #[cfg(feature = "wgpu")]
            Device::Wgpu => quietly(|| {
                use burn::tensor::backend::Backend;
                burn::backend::Wgpu::<f32, i32>::sync(&Default::default()).map_err(|e| e.to_string())
            })
            .unwrap_or_else(|| {
                Err("no GPU was found: install a driver for Vulkan, Metal or DirectX 12".into())
            })
            .map_err(|reason| Error::device(self, reason)),
            #[allow(unreachable_patterns)]
            other => Err(other.missing()),
        }
    }

    /// The name of the GPU, where its driver tells.
    pub fn hardware(self) -> Option<String> {
        match self {
            #[cfg(feature = "cuda")]
            Device::Cuda(index) => cuda::name(index),
            _ => None,
        }
    }

    /// That the program was built without this device.
    #[allow(dead_code)]
    fn missing(self) -> Error {
        let feature = if self == Device::Wgpu { "wgpu" } else { "cuda" };
        Error::device(
            self,
            format!("this program was built without it; build it with `--features {feature}`"),
        )
    }
}

/// The result of code that may panic, without its message; the libraries below know no other way to
/// say no.
#[cfg(feature = "gpu")]
fn quietly<T>(work: impl FnOnce() -> T + std::panic::UnwindSafe) -> Option<T> {
    // The hook belongs to the whole process: two threads at once would leave the silent one behind.
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _turn = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let result = std::panic::catch_unwind(work).ok();
    std::panic::set_hook(hook);
    result
}

#[cfg(feature = "cuda")]
mod cuda {
    use cubecl::cuda::install::cuda_path;
    use cudarc::driver::CudaContext;
    use cudarc::nvrtc::compile_ptx;

    use super::quietly;

    pub(super) fn name(index: usize) -> Option<String> {
        quietly(|| CudaContext::new(index).ok()?.name().ok())?
    }

    pub(super) fn check(index: usize) -> std::result::Result<(), String> {
        let count = match quietly(CudaContext::device_count) {
            None => return Err("no CUDA driver was found: install NVIDIA's driver (libcuda)".into()),
            Some(Err(error)) => return Err(format!("the CUDA driver sees no GPU: {error}")),
            Some(Ok(count)) => usize::try_from(count).unwrap_or(0),
        };
        if index >= count {
            return Err(format!(
                "there is no such GPU; their numbers go from 0 to {}",
                count.saturating_sub(1)
            ));
        }
        if cuda_path().is_none_or(|path| !path.join("include").is_dir()) {
            return Err(
                "no CUDA toolkit was found: install it, and set CUDA_PATH if it is not in /usr/local/cuda"
                    .into(),
            );
        }
        if !matches!(
            quietly(|| compile_ptx("extern \"C\" __global__ void f() {}")),
            Some(Ok(_))
        ) {
            return Err(
                "the CUDA compiler library (libnvrtc) was not found: add the toolkit's lib64 to LD_LIBRARY_PATH".into(),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices_are_read_back() {
        for device in [Device::Cpu, Device::Cuda(0), Device::Cuda(3), Device::Wgpu] {
            assert_eq!(device.to_string().parse::<Device>().unwrap(), device);
        }
        for bad in ["", "gpu", "cuda:", "cuda:x", "cpu:1", "cuda:-1"] {
            let message = bad.parse::<Device>().unwrap_err().to_string();
            assert!(message.contains("must be cpu"), "{message}");
        }
    }

    #[test]
    #[cfg(not(feature = "gpu"))]
    fn a_device_that_is_not_built_in_is_refused_with_the_feature_to_build() {
        let message = Device::Cuda(1).check().unwrap_err().to_string();
        assert_eq!(
            message,
            "device cuda:1: this program was built without it; build it with `--features cuda`"
        );
    }
}
