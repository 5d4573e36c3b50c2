//! What Services are given: cluster IPs from the service range and node ports, each used once in the cluster.
//!
//! Taking is a transaction: a [`Claim`] gives everything back when it is dropped and keeps it when it is committed. The lower band of
//! both pools is left to explicit requests as long as the upper one has room, as in kube-apiserver.

use std::{
    collections::BTreeSet,
    fmt,
    net::IpAddr,
    ops::Range,
    str::FromStr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    kinds::Allocation,
    validation::net::{parse_cidr, parse_ip},
};

/// The node ports a cluster gives out.
const NODE_PORTS: Range<i64> = 30_000..32_768;
/// As many addresses of a range are used at most; upstream keeps a bitmap of that size for IPv6 too.
const MAX_ADDRESSES: u64 = 1 << 16;

/// Why something could not be taken; the texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("provided IP is already allocated")]
    AddressTaken,
    #[error("the provided network does not match the current range")]
    OtherNetwork,
    #[error("range is full")]
    Full,
    #[error("provided port is already allocated")]
    PortTaken,
    #[error("provided port is not in the valid range. The range of valid ports is 30000-32767")]
    OtherPort,
}

/// The range cluster IPs are taken from, as `10.96.0.0/16`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRange {
    base: IpAddr,
    length: u8,
}

/// The text is no CIDR with room for Services.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no CIDR with room for services")]
pub struct InvalidRange(String);

impl Default for ServiceRange {
    fn default() -> Self {
        ServiceRange {
            base: IpAddr::from([10, 96, 0, 0]),
            length: 16,
        }
    }
}

impl FromStr for ServiceRange {
    type Err = InvalidRange;

    fn from_str(text: &str) -> Result<Self, InvalidRange> {
        let range = parse_cidr(text).ok_or_else(|| InvalidRange(text.to_owned()))?;
        let bits = if range.network.is_ipv4() { 32 } else { 128 };
        if range.length + 3 > bits {
            return Err(InvalidRange(text.to_owned()));
        }
        Ok(ServiceRange {
            base: range.network,
            length: range.length,
        })
    }
}

impl fmt::Display for ServiceRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.length)
    }
}

impl ServiceRange {
    /// `IPv4` or `IPv6`.
    pub fn family(&self) -> &'static str {
        if self.base.is_ipv4() { "IPv4" } else { "IPv6" }
    }

    /// The address of the `kubernetes` Service: the first one.
    pub fn first(&self) -> IpAddr {
        self.address(1)
    }

    /// How many offsets there are; the first (the network) and, for IPv4, the last (broadcast) are no addresses of Services.
    fn size(&self) -> u64 {
        let bits = if self.base.is_ipv4() { 32 } else { 128 };
        1u64.checked_shl(u32::from(bits - self.length))
            .unwrap_or(MAX_ADDRESSES)
            .min(MAX_ADDRESSES.max(1 << 20))
    }

    fn address(&self, offset: u64) -> IpAddr {
        match self.base {
            IpAddr::V4(base) => IpAddr::V4((u32::from(base).wrapping_add(offset as u32)).into()),
            IpAddr::V6(base) => {
                IpAddr::V6((u128::from(base).wrapping_add(u128::from(offset))).into())
            }
        }
    }

    fn offset(&self, ip: IpAddr) -> Option<u64> {
        let offset = match (self.base, ip) {
            (IpAddr::V4(base), IpAddr::V4(ip)) => {
                u64::from(u32::from(ip).checked_sub(u32::from(base))?)
            }
            (IpAddr::V6(base), IpAddr::V6(ip)) => {
                u64::try_from(u128::from(ip).checked_sub(u128::from(base))?).ok()?
            }
            _ => return None,
        };
        let last = if self.base.is_ipv4() {
            self.size() - 1
        } else {
            self.size()
        };
        (1..last).contains(&offset).then_some(offset)
    }
}

#[derive(Debug, Default)]
struct Used {
    addresses: BTreeSet<u64>,
    ports: BTreeSet<i64>,
}

/// The pools of one cluster.
#[derive(Debug)]
pub(crate) struct Pools {
    range: ServiceRange,
    used: Mutex<Used>,
}

impl Pools {
    /// Empty pools.
    pub(crate) fn new(range: ServiceRange) -> Arc<Pools> {
        Arc::new(Pools {
            range,
            used: Mutex::default(),
        })
    }

    /// The range of the addresses.
    pub(crate) fn range(&self) -> &ServiceRange {
        &self.range
    }

    /// Starts a transaction.
    pub(crate) fn claim(self: &Arc<Self>) -> Claim {
        Claim {
            pools: self.clone(),
            taken: Used::default(),
            released: Used::default(),
        }
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where dynamic allocation starts: below is kept for explicit requests.
fn reserved(size: u64, part: u64, most: u64) -> u64 {
    if size <= 16 {
        0
    } else {
        (size / part).max(16).min(most)
    }
}

/// A free number: a random one of the upper band, or the first free one after it; then of the lower band.
fn pick(whole: Range<u64>, reserved: u64, taken: impl Fn(u64) -> bool) -> Option<u64> {
    let middle = whole.start + reserved;
    let bands = [middle..whole.end, whole.start..middle];
    bands
        .into_iter()
        .filter(|band| !band.is_empty())
        .find_map(|band| {
            let start = rand::random_range(band.clone());
            (start..band.end)
                .chain(band.start..start)
                .find(|&number| !taken(number))
        })
}

/// What one write takes and gives back.
pub(crate) struct Claim {
    pools: Arc<Pools>,
    taken: Used,
    released: Used,
}

impl Claim {
    /// Takes this address.
    pub(crate) fn address(&mut self, ip: &str) -> Result<(), Refusal> {
        let offset = parse_ip(ip)
            .and_then(|ip| self.pools.range.offset(ip))
            .ok_or(Refusal::OtherNetwork)?;
        if !self.pools.used().addresses.insert(offset) {
            return Err(Refusal::AddressTaken);
        }
        self.taken.addresses.insert(offset);
        Ok(())
    }

    /// Takes any address.
    pub(crate) fn any_address(&mut self) -> Result<IpAddr, Refusal> {
        let range = &self.pools.range;
        let mut used = self.pools.used();
        let size = range.size();
        let last = if range.base.is_ipv4() { size - 1 } else { size };
        let reserved = reserved(size, 16, 256);
        let offset = pick(1..last, reserved, |offset| used.addresses.contains(&offset))
            .ok_or(Refusal::Full)?;
        used.addresses.insert(offset);
        self.taken.addresses.insert(offset);
        Ok(range.address(offset))
    }

    /// Gives an address back when the write is stored.
    pub(crate) fn release_address(&mut self, ip: &str) {
        self.released
            .addresses
            .extend(parse_ip(ip).and_then(|ip| self.pools.range.offset(ip)));
    }

    /// The addresses that it takes, and those that it gives back.
    pub(super) fn addresses(&self) -> [Vec<IpAddr>; 2] {
        let range = &self.pools.range;
        let addresses = |used: &Used| used.addresses.iter().map(|at| range.address(*at)).collect();
        [addresses(&self.taken), addresses(&self.released)]
    }

    /// Takes this node port.
    pub(crate) fn port(&mut self, port: i64) -> Result<(), Refusal> {
        if !NODE_PORTS.contains(&port) {
            return Err(Refusal::OtherPort);
        }
        if !self.pools.used().ports.insert(port) {
            return Err(Refusal::PortTaken);
        }
        self.taken.ports.insert(port);
        Ok(())
    }

    /// Takes any node port.
    pub(crate) fn any_port(&mut self) -> Result<i64, Refusal> {
        let mut used = self.pools.used();
        let whole = NODE_PORTS.start.unsigned_abs()..NODE_PORTS.end.unsigned_abs();
        let reserved = reserved(whole.end - whole.start, 32, 128);
        let taken = |port: u64| i64::try_from(port).is_ok_and(|port| used.ports.contains(&port));
        let port = pick(whole, reserved, taken)
            .and_then(|port| i64::try_from(port).ok())
            .ok_or(Refusal::Full)?;
        used.ports.insert(port);
        self.taken.ports.insert(port);
        Ok(port)
    }

    /// Gives a node port back when the write is stored.
    pub(crate) fn release_port(&mut self, port: i64) {
        self.released.ports.insert(port);
    }
}

impl Allocation for Claim {
    fn commit(mut self: Box<Self>) {
        self.taken = Used::default();
        let released = std::mem::take(&mut self.released);
        let mut used = self.pools.used();
        used.addresses
            .retain(|offset| !released.addresses.contains(offset));
        used.ports.retain(|port| !released.ports.contains(port));
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut used = self.pools.used();
        used.addresses
            .retain(|offset| !self.taken.addresses.contains(offset));
        used.ports.retain(|port| !self.taken.ports.contains(port));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_is_given_back_and_what_is_committed_is_kept() {
        let pools = Pools::new(ServiceRange::default());
        let mut claim = pools.claim();
        claim.address("10.96.0.9").unwrap();
        claim.port(30_100).unwrap();
        drop(claim);
        let mut claim = pools.claim();
        claim.address("10.96.0.9").unwrap();
        Box::new(claim).commit();
        assert_eq!(
            pools.claim().address("10.96.0.9"),
            Err(Refusal::AddressTaken)
        );
        let mut claim = pools.claim();
        claim.release_address("10.96.0.9");
        Box::new(claim).commit();
        assert_eq!(pools.claim().address("10.96.0.9"), Ok(()));
    }

    #[test]
    fn the_lower_band_is_for_explicit_requests_until_the_upper_one_is_full() {
        let pools = Pools::new("10.0.0.0/27".parse().unwrap());
        let mut claim = pools.claim();
        let taken: BTreeSet<IpAddr> = (0..30).map(|_| claim.any_address().unwrap()).collect();
        assert_eq!(taken.len(), 30);
        assert_eq!(claim.any_address(), Err(Refusal::Full));
        let pools = Pools::new("10.0.0.0/24".parse().unwrap());
        let mut claim = pools.claim();
        let floor = IpAddr::from([10, 0, 0, 16]);
        assert!((0..200).all(|_| claim.any_address().unwrap() > floor));
    }

    #[test]
    fn addresses_and_ports_outside_the_ranges_are_refused() {
        let pools = Pools::new(ServiceRange::default());
        assert_eq!(
            pools.claim().address("10.97.0.1"),
            Err(Refusal::OtherNetwork)
        );
        assert_eq!(
            pools.claim().address("10.96.0.0"),
            Err(Refusal::OtherNetwork)
        );
        assert_eq!(pools.claim().port(80), Err(Refusal::OtherPort));
        assert!("10.0.0.0/31".parse::<ServiceRange>().is_err());
    }
}
