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
    !path.is_empty() && path.split('/').all(is_component)
}

/// Returns whether a part of a path is words of lower-case letters and digits with `.`, `_`, `__` or dashes between them.
fn is_component(component: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_edge = |c: Option<char>| c.is_some_and(is_word);
    is_edge(component.chars().next())
        && is_edge(component.chars().next_back())
        && component.split(is_word).all(|separator| {
            matches!(separator, "" | "." | "_" | "__") || separator.bytes().all(|byte| byte == b'-')
        })
}

fn is_domain(first: &str) -> bool {
    (first == "localhost"
        || first.contains(['.', ':'])
        || first.bytes().any(|byte| byte.is_ascii_uppercase()))
        && is_host_and_port(first)
}

/// Returns whether a text is a host name or a bracketed IPv6 address, with an optional port.
fn is_host_and_port(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, rest)) => {
            let is_address = |byte: u8| byte.is_ascii_hexdigit() || byte == b':';
            if address.is_empty() || !address.bytes().all(is_address) {
                return false;
            }
            match rest.strip_prefix(':') {
                None => return rest.is_empty(),
                port => ("localhost", port),
            }
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let is_label = |label: &str| {
        let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        !label.is_empty()
            && label.bytes().all(is_inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    host.split('.').all(is_label)
        && port
            .is_none_or(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()))
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
    fn a_malformed_reference_has_no_tag() {
        for malformed in [
            "2001:db8::/32",
            "a..b",
            "a___b",
            "a._b",
            "-a",
            "reg.example.com:x/a",
            ".example.com/a",
            "[::1/a",
            "[]/a",
            "[::1]x/a",
        ] {
            assert_eq!(tag(malformed), None, "{malformed}");
        }
        for good in [
            "a__b",
            "a--b",
            "a.b_c-d",
            "[::1]:5000/a",
            "[::1]/a",
            "localhost/a",
        ] {
            assert_eq!(tag(good), Some("latest"), "{good}");
        }
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
