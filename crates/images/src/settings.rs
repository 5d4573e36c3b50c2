//! The settings: which registries may be asked, which of them without TLS, and their mirrors.

use std::{collections::BTreeMap, net::IpAddr, str::FromStr};

use thiserror::Error;

/// The registries that may be asked, and how. By default only registries on this machine may be asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Whether every registry may be asked; otherwise only those on this machine and those in `hosts`.
    pub all: bool,
    /// Whether no registry may be asked.
    pub none: bool,
    /// Hosts (with their port if it is not 443) that may be asked.
    pub hosts: Vec<String>,
    /// Hosts without TLS, besides those on this machine.
    pub plain: Vec<String>,
    /// Whether sizes of images are requested too, once their platforms are known. Simulations need them.
    pub sizes: bool,
    /// The mirrors of each registry, which are asked before the registry itself.
    pub mirrors: BTreeMap<String, Vec<Mirror>>,
}

/// A host that mirrors a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// The host, with its port if given.
    pub host: String,
    /// Whether to use HTTP without TLS.
    pub plain: bool,
}

/// The error for a text that is not a setting.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{0:?} names no registry: give all, none, or with commas between HOST, http://HOST or HOST=MIRROR"
)]
pub struct SettingsError(String);

impl FromStr for Settings {
    type Err = SettingsError;

    /// Parses `all`, `none`, or a list of hosts: `registry.example.com`, `http://10.0.0.5:5000` (without TLS),
    /// `docker.io=mirror.example.com` or `docker.io=http://10.0.0.5:5000` (a mirror that is asked before Docker Hub).
    fn from_str(text: &str) -> Result<Self, SettingsError> {
        let mut settings = Settings::default();
        for word in text.split(',').map(str::trim) {
            match word.split_once('=') {
                _ if word == "all" => settings.all = true,
                _ if word == "none" => settings.none = true,
                Some((host, mirror)) => {
                    let mirror = endpoint(mirror).ok_or(SettingsError(word.to_owned()))?;
                    let host = endpoint(host)
                        .filter(|of| !of.plain)
                        .ok_or(SettingsError(word.to_owned()))?
                        .host;
                    // Naming a mirror for a registry permits asking that registry.
                    settings.hosts.push(host.clone());
                    settings.mirrors.entry(host).or_default().push(mirror);
                }
                None => {
                    let Mirror { host, plain } =
                        endpoint(word).ok_or(SettingsError(word.to_owned()))?;
                    if plain {
                        settings.plain.push(host.clone());
                    }
                    settings.hosts.push(host);
                }
            }
        }
        // `none` contradicts every other word, and which of them was meant cannot be known.
        if settings.none
            && settings
                != (Settings {
                    none: true,
                    ..Settings::default()
                })
        {
            Err(SettingsError(text.to_owned()))
        } else {
            Ok(settings)
        }
    }
}

fn endpoint(text: &str) -> Option<Mirror> {
    let (host, plain) = match text.strip_prefix("http://") {
        Some(host) => (host, true),
        None => (text.strip_prefix("https://").unwrap_or(text), false),
    };
    let host = host.trim_end_matches('/');
    let is_host = !host.is_empty()
        && host
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || ".-:[]".contains(c));
    is_host.then(|| Mirror {
        host: host.to_owned(),
        plain,
    })
}

impl Settings {
    /// Returns whether a registry may be asked.
    pub fn permits(&self, registry: &str) -> bool {
        !self.none
            && (self.all || is_loopback(registry) || self.hosts.iter().any(|host| host == registry))
    }

    /// Returns the hosts to ask for the images of a registry, in order: the mirrors, then the registry.
    pub(crate) fn endpoints(&self, registry: &str) -> Vec<Mirror> {
        let mirrors = self.mirrors.get(registry).into_iter().flatten();
        let itself = Mirror {
            host: match registry {
                "docker.io" => "registry-1.docker.io".to_owned(),
                registry => registry.to_owned(),
            },
            plain: self.is_plain(registry),
        };
        mirrors.cloned().chain([itself]).collect()
    }

    /// Returns whether a host is asked without TLS.
    pub(crate) fn is_plain(&self, host: &str) -> bool {
        let listed = self.plain.iter().any(|plain| plain == host);
        let mut mirrors = self.mirrors.values().flatten();
        listed || is_loopback(host) || mirrors.any(|mirror| mirror.plain && mirror.host == host)
    }
}

/// Returns whether `host[:port]` names this machine.
pub(crate) fn is_loopback(host: &str) -> bool {
    let (name, _) = split(host, 0);
    let address: Option<IpAddr> = name.parse().ok();
    name == "localhost" || address.is_some_and(|address| address.is_loopback())
}

/// Returns host and port of `host[:port]`, without the brackets of an IPv6 address.
pub(crate) fn split(host: &str, default: u16) -> (&str, u16) {
    if let Some((address, rest)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let port = rest.strip_prefix(':').and_then(|port| port.parse().ok());
        return (address, port.unwrap_or(default));
    }
    match host.rsplit_once(':') {
        Some((name, port)) => (name, port.parse().unwrap_or(default)),
        None => (host, default),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Settings {
        text.parse().expect("the text names registries")
    }

    #[test]
    fn registries_of_this_machine_are_asked_and_others_when_they_are_listed() {
        let usual = Settings::default();
        for host in ["localhost:5000", "127.0.0.1:5000", "[::1]:5000"] {
            assert!(usual.permits(host) && usual.is_plain(host), "{host}");
        }
        assert!(!usual.permits("docker.io"));
        let listed = settings("registry.example.com,http://10.0.0.5:5000");
        assert!(listed.permits("registry.example.com") && !listed.is_plain("registry.example.com"));
        assert!(listed.permits("10.0.0.5:5000") && listed.is_plain("10.0.0.5:5000"));
        assert!(settings("all").permits("docker.io"));
        assert!(!settings("none").permits("localhost:5000"));
    }

    #[test]
    fn mirrors_come_before_the_registry_they_stand_for() {
        let settings = settings("docker.io=http://10.0.0.5:5000,all");
        let hosts: Vec<_> = settings
            .endpoints("docker.io")
            .into_iter()
            .map(|endpoint| (endpoint.host, endpoint.plain))
            .collect();
        assert_eq!(
            hosts,
            [
                ("10.0.0.5:5000".to_owned(), true),
                ("registry-1.docker.io".to_owned(), false)
            ]
        );
    }

    #[test]
    fn what_names_no_registry_is_refused() {
        for text in ["", "a b", "docker.io=", "=x", "none,all", "http://"] {
            assert!(text.parse::<Settings>().is_err(), "{text:?}");
        }
    }
}
