//! Parses image references for defaulting: the tag decides the default pull policy.
//!
//! As in `k8s.io/kubernetes/pkg/util/parsers`, a reference without tag and digest has the tag `latest`, and a malformed reference has none.

/// Returns the tag of a reference; `None` for a digest without a tag, and for a malformed reference.
pub(super) fn tag(reference: &str) -> Option<&str> {
    let (name, digest) = match reference.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (reference, None),
    };
    if digest.is_some_and(|digest| !digest.contains(':')) {
        return None;
    }
    let path_start = name.rfind('/').map_or(0, |slash| slash + 1);
    let (repository, tag) = match name[path_start..].rfind(':') {
        Some(colon) => (
            &name[..path_start + colon],
            Some(&name[path_start + colon + 1..]),
        ),
        None => (name, None),
    };
    if !is_repository(repository) || tag.is_some_and(|tag| !is_tag(tag)) {
        return None;
    }
    tag.or(digest.is_none().then_some("latest"))
}

fn is_repository(repository: &str) -> bool {
    // The first part is a registry only if no folder could have its name, as in Docker's references.
    let path = match repository.split_once('/') {
        Some((domain, path)) if is_domain(domain) => path,
        _ => repository,
    };
    !path.is_empty()
        && path.split('/').all(|component| {
            let edge = |byte: Option<u8>| {
                byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
            };
            edge(component.bytes().next())
                && edge(component.bytes().last())
                && component.bytes().all(|byte| {
                    byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte)
                })
        })
}

fn is_domain(first: &str) -> bool {
    (first == "localhost"
        || first.contains(['.', ':'])
        || first.bytes().any(|byte| byte.is_ascii_uppercase()))
        && first
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b".:-[]".contains(&byte))
}

fn is_tag(tag: &str) -> bool {
    (1..=128).contains(&tag.len())
        && tag
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
        && !tag.starts_with(['.', '-'])
}

#[cfg(test)]
mod tests {
    use super::tag;

    #[test]
    fn a_reference_without_tag_and_digest_names_latest() {
        assert_eq!(tag("busybox"), Some("latest"));
        assert_eq!(tag("registry.example.com:5000/team/app"), Some("latest"));
        assert_eq!(tag("busybox:latest"), Some("latest"));
    }

    #[test]
    fn tags_and_digests_are_told_apart() {
        assert_eq!(tag("registry.example.com:5000/team/app:v1"), Some("v1"));
        assert_eq!(tag("busybox@sha256:00"), None);
        assert_eq!(tag("busybox:1@sha256:00"), Some("1"));
    }

    #[test]
    fn what_is_no_reference_names_no_tag() {
        for bad in ["", " nginx ", "Nginx", "a//b", "nginx:"] {
            assert_eq!(tag(bad), None, "{bad:?}");
        }
    }
}
