//! Image references (registry, repository, tag and digest), parsed as Docker parses them.

use std::borrow::Cow;

use thiserror::Error;

/// The error for an image name that no container runtime accepts.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum InvalidImage {
    /// The repository has capital letters.
    #[error(
        "couldn't parse image name {name:?}: invalid reference format: repository name ({repository}) must be lowercase"
    )]
    Uppercase {
        /// The name as given.
        name: String,
        /// The repository within it.
        repository: String,
    },
    /// The name is invalid for any other reason.
    #[error("couldn't parse image name {name:?}: invalid reference format")]
    Format {
        /// The name as given.
        name: String,
    },
}

/// A parsed image reference.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ImageRef {
    /// Registry and path: `docker.io/library/nginx`.
    pub repository: String,
    /// The tag; `latest` if the name has neither tag nor digest.
    pub tag: Option<String>,
    /// The digest with its algorithm.
    pub digest: Option<String>,
}

impl ImageRef {
    /// Parses a name as Docker does: `nginx` is `docker.io/library/nginx:latest`.
    ///
    /// # Errors
    /// Returns an error if the name is not a valid reference.
    pub fn parse(name: &str) -> Result<Self, InvalidImage> {
        let format = || InvalidImage::Format {
            name: name.to_owned(),
        };
        let (rest, digest) = match name.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (name, None),
        };
        // A colon before the last slash belongs to the registry's port.
        let (path, tag) = match rest.rsplit_once(':') {
            Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
            _ => (rest, None),
        };
        // Docker's rule: a first part with a dot, a colon or the name `localhost` is a registry, anything else a path
        // on Docker Hub.
        let registry = path
            .split_once('/')
            .filter(|(head, _)| head.contains(['.', ':']) || *head == "localhost");
        let (registry, repository) = match registry {
            Some(("docker.io" | "index.docker.io", repository)) if !repository.contains('/') => {
                ("docker.io", Cow::Owned(format!("library/{repository}")))
            }
            Some(("index.docker.io", repository)) => ("docker.io", Cow::Borrowed(repository)),
            Some((registry, repository)) => (registry, Cow::Borrowed(repository)),
            None if path.contains('/') => ("docker.io", Cow::Borrowed(path)),
            None => ("docker.io", Cow::Owned(format!("library/{path}"))),
        };
        // Told apart from other errors because Docker does, and because it is the most frequent one.
        if repository.chars().any(|c| c.is_ascii_uppercase()) {
            return Err(InvalidImage::Uppercase {
                name: name.to_owned(),
                repository: repository.into_owned(),
            });
        }
        let component = |part: &str| {
            part.starts_with(|c: char| c.is_ascii_alphanumeric())
                && part.ends_with(|c: char| c.is_ascii_alphanumeric())
                && part
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        };
        if !is_host(registry) || !repository.split('/').all(component) {
            return Err(format());
        }
        let tag_is_valid = |tag: &str| {
            (1..=128).contains(&tag.len())
                && !tag.starts_with(['.', '-'])
                && tag
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        };
        let digest_is_valid = |digest: &str| {
            digest.split_once(':').is_some_and(|(algorithm, hex)| {
                let is_word = |c: char| c.is_ascii_alphanumeric() || "+._-".contains(c);
                !algorithm.is_empty()
                    && algorithm.chars().all(is_word)
                    && hex.len() >= 32
                    && hex.chars().all(|c| c.is_ascii_hexdigit())
            })
        };
        if !tag.is_none_or(tag_is_valid) || !digest.is_none_or(digest_is_valid) {
            return Err(format());
        }
        // A digest names the image alone, so no tag is assumed.
        let tag = tag.or(digest.is_none().then_some("latest"));
        Ok(Self {
            repository: format!("{registry}/{repository}"),
            tag: tag.map(str::to_owned),
            digest: digest.map(str::to_owned),
        })
    }

    /// Returns the registry's host and port, `docker.io` for Docker Hub.
    pub fn registry(&self) -> &str {
        self.split().0
    }

    /// Returns the repository below its registry: `library/nginx`.
    pub fn path(&self) -> &str {
        self.split().1
    }

    fn split(&self) -> (&str, &str) {
        let split = self.repository.split_once('/');
        split.expect("a parsed repository begins with its registry")
    }

    /// Returns the complete name with registry and tag, as containerd prints it.
    pub fn full_name(&self) -> String {
        let tag = self
            .tag
            .as_ref()
            .map(|tag| format!(":{tag}"))
            .unwrap_or_default();
        let digest = self
            .digest
            .as_ref()
            .map(|digest| format!("@{digest}"))
            .unwrap_or_default();
        format!("{}{tag}{digest}", self.repository)
    }
}

/// Returns whether `text` is a host name, an IPv4 address or an IPv6 address in brackets, with or without a port.
fn is_host(text: &str) -> bool {
    let is_port = |port: &str| !port.is_empty() && port.chars().all(|c| c.is_ascii_digit());
    if let Some((address, rest)) = text.strip_prefix('[').and_then(|t| t.split_once(']')) {
        return address.parse::<core::net::Ipv6Addr>().is_ok()
            && (rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port));
    }
    let (host, port) = match text.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    };
    let is_label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    };
    port.is_none_or(is_port) && host.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(name: &str) -> ImageRef {
        ImageRef::parse(name).expect("the name is valid")
    }

    #[test]
    fn names_are_completed_as_docker_completes_them() {
        let cases = [
            ("nginx", "docker.io/library/nginx:latest"),
            ("bitnami/redis:7", "docker.io/bitnami/redis:7"),
            ("localhost:5000/app", "localhost:5000/app:latest"),
            ("docker.io/nginx:1", "docker.io/library/nginx:1"),
            (
                "index.docker.io/bitnami/redis",
                "docker.io/bitnami/redis:latest",
            ),
            ("[::1]:5000/app", "[::1]:5000/app:latest"),
            (
                "mcr.microsoft.com/windows/servercore:ltsc2019",
                "mcr.microsoft.com/windows/servercore:ltsc2019",
            ),
        ];
        for (name, full) in cases {
            assert_eq!(parsed(name).full_name(), full);
        }
        let digest = format!("sha256:{}", "a".repeat(64));
        assert_eq!(
            parsed(&format!("nginx@{digest}")).full_name(),
            format!("docker.io/library/nginx@{digest}")
        );
    }

    #[test]
    fn names_that_no_runtime_accepts_are_refused() {
        assert_eq!(
            ImageRef::parse("Nginx").unwrap_err().to_string(),
            r#"couldn't parse image name "Nginx": invalid reference format: repository name (library/Nginx) must be lowercase"#
        );
        let not_hexadecimal = format!("nginx@sha256:{}", "../".repeat(20));
        for name in [
            "",
            "nginx:",
            "a//b",
            "nginx:ta g",
            "nginx@sha256:12",
            "-x",
            "a.b?x=1/app",
            "a.b:80x/app",
            "a..b/app",
            &not_hexadecimal,
        ] {
            let error = ImageRef::parse(name).unwrap_err();
            assert_eq!(
                error,
                InvalidImage::Format {
                    name: name.to_owned()
                },
                "{name:?}"
            );
        }
    }
}
