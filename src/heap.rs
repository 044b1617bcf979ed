//! The heap, which keeps what was freed for what is allocated next.

/// Gives memory that was freed back to the system, where the allocator can. What is allocated before training (the
/// text of a program, what `check` looks up) is freed by then, and would stay resident beside the arena.
pub(crate) fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: no memory that is in use is touched.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}
