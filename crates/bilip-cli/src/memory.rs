//! Handling of freed memory.

/// Keeps freed memory for the next that asks for it.
///
/// Training frees and asks for tensors of the same sizes at every step. glibc gives those of more
/// than some megabytes back to the system each time and gets them again, page by page and filled
/// with zeros: a tenth of the time of the smallest steps, a third of that of a step on images.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "a C function")]
pub fn keep() {
    // SAFETY: `mallopt` takes two numbers; nothing else runs yet. Should it refuse, memory is
    // handled as before.
    unsafe {
        libc::mallopt(libc::M_MMAP_MAX, 0);
        libc::mallopt(libc::M_TRIM_THRESHOLD, -1);
    }
}

/// Other allocators are left as they are.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn keep() {}
