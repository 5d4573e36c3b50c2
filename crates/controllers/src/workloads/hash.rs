//! Computes the hash of a pod template that the names of ReplicaSets and pods contain.

use k8s_openapi::api::core::v1::PodTemplateSpec;

/// The label that distinguishes the pods of a Deployment's ReplicaSets.
pub const POD_TEMPLATE_HASH: &str = "pod-template-hash";

/// Characters that form no words and are not easily confused.
const SAFE: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// Returns the 32-bit FNV-1a hash of the template's JSON and the collision count, its decimal digits written in a
/// safe alphabet.
///
/// Algorithm, alphabet and length are kube-controller-manager's; the value is not. kube-controller-manager hashes
/// what Go's printer prints for the whole structure: the names of fields and types, private fields, and a `<nil>`
/// for every unset field, so its value changes with each release that adds a field. No client can rely on it; this
/// value does not change.
pub fn template_hash(template: &PodTemplateSpec, collisions: Option<i32>) -> String {
    // Serializing to memory cannot fail: keys are strings and there is no IO.
    let dump = serde_json::to_vec(template).expect("a pod template serializes");
    let collisions = collisions.map(|count| i64::from(count).to_le_bytes());
    let fnv = dump
        .iter()
        .chain(collisions.iter().flatten())
        .fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
        });
    fnv.to_string()
        .bytes()
        .map(|digit| char::from(SAFE[usize::from(digit) % SAFE.len()]))
        .collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Container, PodSpec};

    use super::*;

    fn template(image: &str) -> PodTemplateSpec {
        let container = Container {
            image: Some(image.to_owned()),
            ..Container::default()
        };
        let spec = PodSpec {
            containers: vec![container],
            ..PodSpec::default()
        };
        PodTemplateSpec {
            metadata: None,
            spec: Some(spec),
        }
    }

    #[test]
    fn equal_templates_hash_alike_and_others_do_not() {
        assert_eq!(
            template_hash(&template("a"), None),
            template_hash(&template("a"), None)
        );
        assert_ne!(
            template_hash(&template("a"), None),
            template_hash(&template("b"), None)
        );
    }

    #[test]
    fn a_collision_changes_the_hash() {
        let hashes = [None, Some(1), Some(2)].map(|count| template_hash(&template("a"), count));
        assert!(hashes[0] != hashes[1] && hashes[1] != hashes[2] && hashes[0] != hashes[2]);
    }

    #[test]
    fn the_hash_is_a_valid_part_of_a_name() {
        let hash = template_hash(&template("a"), None);
        assert!(
            (1..=10).contains(&hash.len()) && hash.bytes().all(|byte| SAFE.contains(&byte)),
            "{hash}"
        );
    }
}
