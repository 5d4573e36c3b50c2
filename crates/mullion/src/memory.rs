//! The memory of this process.

/// Returns the resident bytes of this process, or `None` on systems other than Linux.
pub(crate) fn resident_bytes() -> Option<u64> {
    read("/proc/self/status")
}

/// Returns the resident bytes of another process, or `None` on systems other than Linux and if the process does not exist.
pub(crate) fn resident_bytes_of(pid: u32) -> Option<u64> {
    read(&format!("/proc/{pid}/status"))
}

fn read(status: &str) -> Option<u64> {
    let status = std::fs::read_to_string(status).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_holds_some_memory() {
        assert!(super::resident_bytes().is_some_and(|bytes| bytes > 100_000));
        let the_same = super::resident_bytes_of(std::process::id());
        assert!(the_same.is_some_and(|bytes| bytes > 100_000));
        assert_eq!(super::resident_bytes_of(u32::MAX), None);
    }
}
