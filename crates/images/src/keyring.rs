//! The credentials in one pod's pull secrets, and those among them that fit an image.
//!
//! Matching follows the kubelet: host names are compared label by label with `*` in a label, ports must be equal, and the path is a
//! prefix; longer keys come first. A keyring belongs to one pod, so secrets of other namespaces never help it.

use std::{borrow::Borrow, collections::BTreeMap, fmt};

use base64::{Engine, engine::general_purpose::STANDARD};
use mullion_engine::images::ImageRef;
use serde::Deserialize;
use serde_json::Value;

/// The types of pull secrets: the type, the key of the data, and whether the entries are below `auths`.
const TYPES: [(&str, &str, bool); 2] = [
    ("kubernetes.io/dockerconfigjson", ".dockerconfigjson", true),
    ("kubernetes.io/dockercfg", ".dockercfg", false),
];
/// The maximum number of credentials from one pod's secrets.
const MOST: usize = 64;

/// A user and a password.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Credentials {
    /// The user name.
    pub user: String,
    /// The password.
    pub password: String,
}

/// Shows only the user, so that passwords never get into logs.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// The credentials of one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keyring {
    /// The credentials by registry key without scheme, longer keys first.
    entries: Vec<(String, Credentials)>,
}

#[derive(Deserialize)]
struct Entry {
    username: Option<String>,
    password: Option<String>,
    auth: Option<String>,
}

impl Keyring {
    /// Reads the credentials of Secrets in the API server's form. Secrets of other types and malformed ones are ignored.
    pub fn of<S: Borrow<Value>>(secrets: &[S]) -> Self {
        let mut entries = Vec::new();
        for secret in secrets {
            entries.extend(entries_of(secret.borrow()).unwrap_or_default());
        }
        // Every entry may cost a request, and a pod's author controls the secrets.
        entries.truncate(MOST);
        // Sorted in descending order as by the kubelet, so that of keys with the same beginning the longer one comes first.
        entries.sort_by(|(one, _), (another, _)| another.cmp(one));
        Keyring { entries }
    }

    /// Returns the credentials that fit an image, best first; if there are none, the image is requested without credentials.
    pub fn fitting(&self, image: &ImageRef) -> Vec<Credentials> {
        let registry = image.registry();
        let mut fitting = self.at(registry, image.path());
        // `docker login` stores Docker Hub's credentials under this old name.
        if fitting.is_empty() && registry == "docker.io" {
            fitting = self.at("index.docker.io", image.path());
        }
        fitting
    }

    /// Returns the credentials that fit a path on a host.
    pub(crate) fn at(&self, host: &str, path: &str) -> Vec<Credentials> {
        let fitting = self
            .entries
            .iter()
            .filter(|(key, _)| matches(key, host, path));
        fitting
            .map(|(_, credentials)| credentials.clone())
            .collect()
    }
}

fn entries_of(secret: &Value) -> Option<Vec<(String, Credentials)>> {
    let kind = secret["type"].as_str()?;
    let (_, key, is_nested) = TYPES.iter().find(|(name, ..)| *name == kind)?;
    let data = STANDARD.decode(secret["data"][key].as_str()?).ok()?;
    let mut config: Value = serde_json::from_slice(&data).ok()?;
    if *is_nested {
        config = config["auths"].take();
    }
    let config: BTreeMap<String, Value> = serde_json::from_value(config).ok()?;
    let entry = |(key, value): (String, Value)| {
        let entry: Entry = serde_json::from_value(value).ok()?;
        Some((bare(&key), credentials(entry)?))
    };
    Some(config.into_iter().filter_map(entry).collect())
}

fn credentials(entry: Entry) -> Option<Credentials> {
    let Some(auth) = entry.auth.filter(|auth| !auth.is_empty()) else {
        return Some(Credentials {
            user: entry.username.filter(|user| !user.is_empty())?,
            password: entry.password.unwrap_or_default(),
        });
    };
    let decoded = String::from_utf8(STANDARD.decode(auth.trim()).ok()?).ok()?;
    let (user, password) = decoded.split_once(':')?;
    Some(Credentials {
        user: user.to_owned(),
        password: password.to_owned(),
    })
}

/// Returns a key without its scheme, without the API version in the path of old entries, and without a trailing slash.
fn bare(key: &str) -> String {
    let rest = key.split_once("://").map_or(key, |(_, rest)| rest);
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let path = format!("/{path}");
    let path = ["/v1", "/v2"]
        .into_iter()
        .find_map(|version| path.strip_prefix(&format!("{version}/")))
        .unwrap_or(&path[1..]);
    let path = match path {
        "v1" | "v2" => "",
        path => path.trim_end_matches('/'),
    };
    if path.is_empty() {
        host.to_owned()
    } else {
        format!("{host}/{path}")
    }
}

fn matches(key: &str, host: &str, path: &str) -> bool {
    let (key_host, key_path) = key.split_once('/').unwrap_or((key, ""));
    let port = |host: &str| host.rsplit_once(':').map(|(_, port)| port.to_owned());
    let name = |host: &str| {
        host.rsplit_once(':')
            .map_or(host, |(name, _)| name)
            .to_owned()
    };
    let (pattern, name) = (name(key_host), (name(host), port(host)));
    let labels: Vec<_> = name.0.split('.').collect();
    let patterns: Vec<_> = pattern.split('.').collect();
    port(key_host) == name.1
        && labels.len() == patterns.len()
        && patterns
            .iter()
            .zip(labels)
            .all(|(pattern, label)| fits(pattern, label))
        && path.starts_with(key_path)
}

/// Returns whether a label of a host name matches a pattern in which `*` matches any number of characters.
fn fits(pattern: &str, label: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == label;
    };
    let Some(mut left) = label.strip_prefix(start) else {
        return false;
    };
    let mut parts = rest.split('*').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return left.ends_with(part);
        }
        match left.find(part) {
            Some(at) => left = &left[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn secret(entries: Value) -> Value {
        let data = STANDARD.encode(json!({"auths": entries}).to_string());
        json!({"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": data}})
    }

    fn users(secrets: &[Value], image: &str) -> Vec<String> {
        let image = ImageRef::parse(image).expect("the name is valid");
        let fitting = Keyring::of(secrets).fitting(&image);
        fitting.into_iter().map(|one| one.user).collect()
    }

    fn user(name: &str) -> Value {
        json!({"auth": STANDARD.encode(format!("{name}:secret"))})
    }

    #[test]
    fn the_longest_path_that_fits_comes_first() {
        let secrets = [secret(json!({
            "registry.example.com": user("host"),
            "registry.example.com/shop": user("shop"),
            "https://registry.example.com/shop/report/": user("report"),
            "registry.example.com:5000": user("port"),
            "other.example.com": user("other"),
        }))];
        assert_eq!(
            users(&secrets, "registry.example.com/shop/report:1"),
            ["report", "shop", "host"]
        );
        assert_eq!(users(&secrets, "registry.example.com/a:1"), ["host"]);
        assert_eq!(users(&secrets, "registry.example.com:5000/a:1"), ["port"]);
        assert!(users(&secrets, "example.com/a:1").is_empty());
    }

    #[test]
    fn a_star_stands_for_one_label() {
        let secrets = [secret(json!({
            "*.example.com": user("star"),
            "123456789012.dkr.ecr.*.amazonaws.com": user("ecr"),
        }))];
        assert_eq!(users(&secrets, "registry.example.com/a"), ["star"]);
        assert!(users(&secrets, "a.b.example.com/a").is_empty());
        assert_eq!(
            users(&secrets, "123456789012.dkr.ecr.us-west-2.amazonaws.com/a"),
            ["ecr"]
        );
    }

    #[test]
    fn docker_hub_is_known_by_its_old_address() {
        let secrets = [secret(json!({"https://index.docker.io/v1/": user("hub")}))];
        assert_eq!(users(&secrets, "nginx"), ["hub"]);
        assert!(users(&secrets, "quay.io/a/b").is_empty());
    }

    #[test]
    fn both_types_of_secrets_are_read_and_malformed_ones_are_none() {
        let plain = json!({"registry.example.com": {"username": "old", "password": "p"}});
        let old = json!({
            "type": "kubernetes.io/dockercfg",
            "data": {".dockercfg": STANDARD.encode(plain.to_string())},
        });
        assert_eq!(users(&[old], "registry.example.com/a"), ["old"]);
        let opaque = json!({"type": "Opaque", "data": {".dockercfg": "e30="}});
        let broken = json!({"type": "kubernetes.io/dockercfg", "data": {".dockercfg": "%"}});
        assert_eq!(Keyring::of(&[opaque, broken]), Keyring::default());
    }

    #[test]
    fn a_password_is_never_printed() {
        let secrets = [secret(json!({"registry.example.com": user("a")}))];
        assert!(!format!("{:?}", Keyring::of(&secrets)).contains("secret"));
    }
}
