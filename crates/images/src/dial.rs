//! Opens connections to registries, and refuses addresses that no registry has. No other module opens connections.
//!
//! Host names are resolved here, and the connection goes to the address that was checked, so that a second DNS query cannot return
//! another one.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, lookup_host},
    time::timeout,
};
use tokio_rustls::TlsConnector;

use crate::error::AskError;

/// The time limit for resolving the name and connecting.
pub(crate) const CONNECT_PATIENCE: Duration = Duration::from_millis(300);

/// The destination of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dialing {
    /// A host name or an address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Whether to use TLS.
    pub tls: bool,
    /// Whether the address may be a loopback address.
    pub loopback: bool,
}

/// A connection.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Opens connections; tests replace it by pipes in memory.
pub trait Dial: Send + Sync {
    /// Opens a connection.
    fn dial(&self, to: Dialing) -> BoxFuture<'_, Result<Box<dyn Io>, AskError>>;
}

/// Opens real TCP connections, with TLS against the system's root certificates.
pub struct SystemDial {
    tls: Arc<ClientConfig>,
}

impl Default for SystemDial {
    fn default() -> Self {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let mut tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider has the default versions of TLS")
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        SystemDial { tls: Arc::new(tls) }
    }
}

impl Dial for SystemDial {
    fn dial(&self, to: Dialing) -> BoxFuture<'_, Result<Box<dyn Io>, AskError>> {
        Box::pin(async move {
            let host = to.host.clone();
            // Far below the limit of the whole question, so that a dead host leaves time for the next mirror.
            let connected = timeout(CONNECT_PATIENCE, connect(&to)).await;
            let stream = connected.map_err(|_| AskError::TimedOut {
                host: host.clone(),
                patience: CONNECT_PATIENCE,
            })??;
            // Requests are small, so waiting to fill packets (Nagle's algorithm) would only delay them.
            let _ = stream.set_nodelay(true);
            if !to.tls {
                return Ok(Box::new(stream) as Box<dyn Io>);
            }
            let unreachable = |why: String| AskError::Unreachable {
                host: host.clone(),
                why,
            };
            let name = ServerName::try_from(to.host.clone())
                .map_err(|error| unreachable(error.to_string()))?;
            let secured = TlsConnector::from(self.tls.clone()).connect(name, stream);
            match secured.await {
                Ok(stream) => Ok(Box::new(stream) as Box<dyn Io>),
                Err(error) => Err(unreachable(error.to_string())),
            }
        })
    }
}

async fn connect(to: &Dialing) -> Result<TcpStream, AskError> {
    let Dialing { host, port, .. } = to;
    let found = lookup_host((host.as_str(), *port)).await;
    let addresses: Vec<SocketAddr> = found
        .map_err(|error| AskError::Unresolved {
            host: host.clone(),
            why: error.to_string(),
        })?
        .collect();
    // One forbidden address forbids the host: otherwise it would depend on the order of the addresses whether the connection is
    // refused.
    for address in &addresses {
        permit(host, address.ip(), to.loopback)?;
    }
    let mut failure = AskError::Unresolved {
        host: host.clone(),
        why: "the resolver gives no address".to_owned(),
    };
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => {
                failure = AskError::Unreachable {
                    host: host.clone(),
                    why: error.to_string(),
                };
            }
        }
    }
    Err(failure)
}

/// The addresses of clouds' metadata services, which reveal credentials; link-local ones are refused anyway.
const METADATA: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
];

/// Refuses addresses that no registry has.
pub(crate) fn permit(host: &str, address: IpAddr, loopback: bool) -> Result<(), AskError> {
    // Checked after resolving: a public name may point to an internal address.
    let plain = embedded(address);
    let why = if METADATA.contains(&plain) {
        "a cloud's metadata service"
    } else if is_link_local(plain) {
        "a link-local address"
    } else if plain.is_unspecified() || plain.is_multicast() || is_broadcast(plain) {
        "no address of one machine"
    } else if plain.is_loopback() && !loopback {
        "an address of this machine"
    } else {
        return Ok(());
    };
    Err(AskError::Refused {
        host: host.to_owned(),
        address,
        why,
    })
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

fn is_broadcast(address: IpAddr) -> bool {
    // Every address in 0.0.0.0/8 means this machine.
    matches!(address, IpAddr::V4(v4) if v4.is_broadcast() || v4.octets()[0] == 0)
}

/// Returns the IPv4 address that is embedded in an IPv6 address (IPv4-mapped and -compatible addresses, NAT64 and 6to4), so that checks
/// cannot be bypassed by writing it in IPv6.
fn embedded(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else {
        return address;
    };
    let v4 = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        IpAddr::V4(Ipv4Addr::new(a, b, c, d))
    };
    match v6.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => address,
        [0, 0, 0, 0, 0, 0xffff | 0, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            v4(high, low)
        }
        [0x2002, high, low, ..] => v4(high, low),
        _ => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_permitted(address: &str, loopback: bool) -> bool {
        let address = address.parse().expect("an address");
        permit("registry.example.com", address, loopback).is_ok()
    }

    #[test]
    fn addresses_that_no_registry_has_are_refused_in_every_notation() {
        for address in [
            "169.254.169.254",
            "169.254.1.1",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
            "fe80::1",
            "fd00:ec2::254",
            "168.63.129.16",
            "100.100.100.200",
            "0.0.0.0",
            "0.0.0.1",
            "::",
            "224.0.0.1",
            "ff02::1",
            "255.255.255.255",
        ] {
            assert!(!is_permitted(address, true), "{address}");
        }
        for address in ["10.0.0.1", "192.168.1.1", "52.1.2.3", "2600::1"] {
            assert!(is_permitted(address, false), "{address}");
        }
    }

    #[test]
    fn this_machine_is_asked_only_if_it_was_named() {
        for address in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert!(is_permitted(address, true), "{address}");
            assert!(!is_permitted(address, false), "{address}");
        }
    }
}
