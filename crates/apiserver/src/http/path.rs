//! Parses request paths.

/// The target of a request path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route<'a> {
    /// `/api` or `/apis`.
    Groups {
        /// `/api`: the core group.
        core: bool,
    },
    /// `/apis/{group}`.
    Group(&'a str),
    /// `/api/v1` or `/apis/{group}/{version}`.
    Version {
        /// Empty for the core group.
        group: &'a str,
        /// For example `v1`.
        version: &'a str,
    },
    /// A collection, an object or a subresource.
    Object(ObjectPath<'a>),
    /// `/openapi/...`, `/version`, `/healthz` and everything else, without trailing slashes.
    Other(&'a str),
}

/// The target of a path below a group and version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObjectPath<'a> {
    /// Empty for the core group.
    pub group: &'a str,
    /// For example `v1`.
    pub version: &'a str,
    /// The namespace, if the path has one. `/namespaces/x` itself is the object `x`, without a namespace.
    pub namespace: Option<&'a str>,
    /// For example `pods`.
    pub plural: &'a str,
    /// The object's name.
    pub name: Option<&'a str>,
    /// The path segment after the name.
    pub subresource: Option<&'a str>,
    /// The path after `proxy`, in the form of the proxy options: with a leading slash and any trailing slash; empty if nothing follows.
    pub proxied: String,
    /// Whether the path has the old `/watch/` prefix.
    pub watch: bool,
}

/// Parses a path; trailing slashes are ignored.
pub(crate) fn parse(path: &str) -> Route<'_> {
    let trimmed = path.trim_end_matches('/');
    let mut segments = trimmed.trim_start_matches('/').split('/');
    let (group, version) = match segments.next() {
        Some("api") => match segments.next() {
            None => return Route::Groups { core: true },
            Some(version) => ("", version),
        },
        Some("apis") => match (segments.next(), segments.next()) {
            (None, _) => return Route::Groups { core: false },
            (Some(group), None) => return Route::Group(group),
            (Some(group), Some(version)) => (group, version),
        },
        _ => return Route::Other(trimmed),
    };
    let mut rest: Vec<&str> = segments.collect();
    let watch = rest.first() == Some(&"watch");
    if watch {
        rest.remove(0);
    }
    let at = |index: usize| rest.get(index).copied();
    let object = ObjectPath {
        group,
        version,
        watch,
        ..ObjectPath::default()
    };
    // The rest of a proxy path belongs to the target and may have any number of segments.
    let proxied = |at: usize| group.is_empty() && rest.get(at) == Some(&"proxy");
    let behind = |at: usize| {
        if !proxied(at) {
            return String::new();
        }
        let mut behind = rest[at + 1..].join("/");
        if !behind.is_empty() && !behind.starts_with('/') {
            behind.insert(0, '/');
        }
        if path.ends_with('/') && !behind.ends_with('/') {
            behind.push('/');
        }
        behind
    };
    match rest.as_slice() {
        [] => Route::Version { group, version },
        // The subresources of a namespace look like resources in a namespace; only these names are subresources.
        ["namespaces", _, "status" | "finalize"] | ["namespaces"] | ["namespaces", _] => {
            Route::Object(ObjectPath {
                plural: "namespaces",
                name: at(1),
                subresource: at(2),
                ..object
            })
        }
        ["namespaces", namespace, plural, ..] if rest.len() <= 5 || proxied(4) => {
            Route::Object(ObjectPath {
                namespace: Some(namespace),
                plural,
                name: at(3),
                subresource: at(4),
                proxied: behind(4),
                ..object
            })
        }
        [plural, ..] if rest.len() <= 3 || proxied(2) => Route::Object(ObjectPath {
            plural,
            name: at(1),
            subresource: at(2),
            proxied: behind(2),
            ..object
        }),
        _ => Route::Other(trimmed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(path: &str) -> ObjectPath<'_> {
        match parse(path) {
            Route::Object(object) => object,
            other => panic!("{path}: {other:?}"),
        }
    }

    #[test]
    fn trailing_slashes_do_not_matter() {
        assert_eq!(parse("/version/"), Route::Other("/version"));
        assert_eq!(parse("/api/"), Route::Groups { core: true });
        assert_eq!(parse("/apis/"), Route::Groups { core: false });
        assert_eq!(
            parse("/apis/apps/v1/"),
            Route::Version {
                group: "apps",
                version: "v1"
            }
        );
    }

    #[test]
    fn a_namespace_is_an_object_and_a_place() {
        assert_eq!(
            (
                object("/api/v1/namespaces/x").plural,
                object("/api/v1/namespaces/x").name
            ),
            ("namespaces", Some("x"))
        );
        let pods = object("/api/v1/namespaces/x/pods");
        assert_eq!(
            (pods.namespace, pods.plural, pods.name),
            (Some("x"), "pods", None)
        );
        let finalize = object("/api/v1/namespaces/x/finalize");
        assert_eq!(
            (finalize.plural, finalize.subresource),
            ("namespaces", Some("finalize"))
        );
    }

    #[test]
    fn a_subresource_follows_the_name() {
        let log = object("/api/v1/namespaces/x/pods/p/log");
        assert_eq!((log.name, log.subresource), (Some("p"), Some("log")));
        let proxy = object("/api/v1/namespaces/x/pods/p:80/proxy/a/b");
        assert_eq!(
            (proxy.name, proxy.subresource),
            (Some("p:80"), Some("proxy"))
        );
        for (rest, behind) in [
            ("", ""),
            ("/", "/"),
            ("/x/y", "/x/y"),
            ("/x/", "/x/"),
            ("//x", "/x"),
        ] {
            let node = format!("/api/v1/nodes/n/proxy{rest}");
            assert_eq!(object(&node).proxied, behind);
            let pod = format!("/api/v1/namespaces/x/pods/p/proxy{rest}");
            assert_eq!(object(&pod).proxied, behind);
        }
        assert_eq!(object("/api/v1/namespaces/x/pods/p/log/").proxied, "");
        let status = object("/apis/g/v1/things/t/status");
        assert_eq!(
            (status.group, status.name, status.subresource),
            ("g", Some("t"), Some("status"))
        );
    }
}
