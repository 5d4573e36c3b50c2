//! Identifiers that look like a container runtime's, derived from what they name.
//!
//! The same pod, container and attempt always give the same identifier, so a run can be compared with another run.

use std::fmt::Write as _;

use mullion_engine::images::ImageRef;

/// Returns 64 hexadecimal digits derived from `parts`.
pub(crate) fn hex64(parts: &[&str]) -> String {
    let mut text = String::with_capacity(64);
    for lane in 0..4u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325 ^ lane.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for part in parts {
            for byte in part.bytes().chain([0xff]) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        }
        // FNV leaves neighbouring inputs with neighbouring high bits; one round of mixing spreads them.
        hash = (hash ^ (hash >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let _ = write!(text, "{:016x}", hash ^ (hash >> 29));
    }
    text
}

/// Returns the identifier of a pod's container on its `attempt`-th start (0 is the first).
pub(crate) fn container_id(pod_uid: &str, container: &str, attempt: i32) -> String {
    format!(
        "containerd://{}",
        hex64(&[pod_uid, container, &attempt.to_string()])
    )
}

/// Returns the repository and digest of an image. An image that is known by its tag gets a digest derived from its
/// name.
pub(crate) fn repo_digest(image: &ImageRef) -> String {
    match &image.digest {
        Some(digest) => format!("{}@{digest}", image.repository),
        None => format!(
            "{}@sha256:{}",
            image.repository,
            hex64(&[&image.full_name()])
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_stable_distinct_and_64_digits_long() {
        let first = hex64(&["uid", "web", "0"]);
        assert_eq!(first, hex64(&["uid", "web", "0"]));
        assert_ne!(first, hex64(&["uid", "web", "1"]));
        assert_ne!(hex64(&["ab", "c"]), hex64(&["a", "bc"]));
        assert_eq!(first.len(), 64);
    }
}
