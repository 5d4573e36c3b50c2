//! Allocates cluster IPs from the ready ranges, and node ports; each is used at most once in the cluster.
//!
//! Ranges may overlap, so addresses are recorded without their range (kube-apiserver: pkg/registry/core/service/ipallocator). A [`Claim`]
//! is a transaction: its allocations are kept when it is committed, and released when it is dropped. As in kube-apiserver, the lower part
//! of each pool is reserved for explicit requests until the upper part is full.

use std::{
    collections::BTreeSet,
    fmt,
    net::IpAddr,
    ops::Range,
    str::FromStr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use mullion_kube_text::validation::net::{parse_cidr, parse_ip};

use crate::Allocation;

/// The range of node ports.
const NODE_PORTS: Range<i64> = 30_000..32_768;
/// The shortest prefix of an IPv6 range (kube-apiserver: NewIPAllocator). There is none of IPv4: since 1.34, kube-apiserver keeps addresses as
/// objects and not in a bitmap, so it allocates from the whole of any range.
const SHORTEST_V6_PREFIX: u8 = 64;

/// The error of a failed allocation, with kube-apiserver's message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("provided IP is already allocated")]
    AddressTaken,
    #[error("the provided network does not match the current range")]
    OtherNetwork,
    #[error("the provided IP ({0}) is not in the valid range. The range of valid IPs is {1}")]
    OtherAddress(IpAddr, ServiceRange),
    #[error("range is full")]
    Full,
    #[error("provided port is already allocated")]
    PortTaken,
    #[error("provided port is not in the valid range. The range of valid ports is 30000-32767")]
    OtherPort,
}

/// The range of cluster IPs, for example `10.96.0.0/16`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRange {
    base: IpAddr,
    length: u8,
}

/// The error for an invalid range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRange {
    /// The text is not a CIDR with room for Services.
    #[error("{0:?} is no CIDR with room for services")]
    NoRoom(String),
    /// The text is an IPv6 CIDR with a prefix of less than 64 bits.
    #[error(
        "{0:?} is too large for services: the shortest prefix of an IPv6 range is {shortest}",
        shortest = SHORTEST_V6_PREFIX
    )]
    TooLarge(String),
    /// The text names several ranges, which kube-apiserver accepts for two families.
    #[error("{0:?} names several ranges: one is taken, of one family")]
    Several(String),
}

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
        if text.contains(',') {
            return Err(InvalidRange::Several(text.to_owned()));
        }
        let range = parse_cidr(text).ok_or_else(|| InvalidRange::NoRoom(text.to_owned()))?;
        let bits = if range.network.is_ipv4() { 32 } else { 128 };
        // kube-apiserver requires a range of at least eight addresses.
        if range.length + 3 > bits {
            return Err(InvalidRange::NoRoom(text.to_owned()));
        }
        let range = ServiceRange {
            base: range.network,
            length: range.length,
        };
        if range.is_too_large() {
            Err(InvalidRange::TooLarge(text.to_owned()))
        } else {
            Ok(range)
        }
    }
}

impl fmt::Display for ServiceRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.length)
    }
}

impl ServiceRange {
    /// Returns `IPv4` or `IPv6`.
    pub fn family(&self) -> &'static str {
        if self.base.is_ipv4() { "IPv4" } else { "IPv6" }
    }

    /// Returns the address of the `kubernetes` Service, which is the first of the range.
    pub fn first(&self) -> IpAddr {
        self.address(1)
    }

    fn is_too_large(&self) -> bool {
        self.base.is_ipv6() && self.length < SHORTEST_V6_PREFIX
    }

    /// Returns the number of offsets. Services do not get the first address (the network's) and, of IPv4, the last one (broadcast). A /64 of
    /// IPv6 has one more than fits into 64 bits, which is left unused.
    fn size(&self) -> u64 {
        let bits = if self.base.is_ipv4() { 32 } else { 128 };
        let hosts = u32::from(bits - self.length);
        1u64.checked_shl(hosts).unwrap_or(u64::MAX)
    }

    fn address(&self, offset: u64) -> IpAddr {
        match self.base {
            IpAddr::V4(base) => IpAddr::V4((u32::from(base).wrapping_add(offset as u32)).into()),
            IpAddr::V6(base) => {
                IpAddr::V6((u128::from(base).wrapping_add(u128::from(offset))).into())
            }
        }
    }

    /// Returns the range of a ServiceCIDR, if addresses of that family can be allocated from it.
    pub(super) fn of_network(text: &str, family: &str) -> Option<Self> {
        let range = parse_cidr(text)?;
        let range = ServiceRange {
            base: range.network,
            length: range.length,
        };
        (!range.is_too_large() && range.family() == family).then_some(range)
    }

    /// Returns the offsets of the addresses that Services can have.
    fn offsets(&self) -> Range<u64> {
        let size = self.size();
        1..if self.base.is_ipv4() { size - 1 } else { size }
    }

    /// Returns whether a Service can have an address from this range.
    fn has(&self, ip: IpAddr) -> bool {
        match (self.base, ip) {
            (IpAddr::V4(base), IpAddr::V4(ip)) => {
                let hosts = u32::MAX.checked_shr(u32::from(self.length)).unwrap_or(0);
                let (base, ip) = (u32::from(base), u32::from(ip));
                base < ip && ip < base | hosts
            }
            (IpAddr::V6(base), IpAddr::V6(ip)) => {
                let (base, ip) = (u128::from(base), u128::from(ip));
                let rest = 128 - u32::from(self.length);
                ip != base && base.checked_shr(rest) == ip.checked_shr(rest)
            }
            _ => false,
        }
    }
}

#[derive(Debug, Default)]
struct UsedValues {
    addresses: BTreeSet<IpAddr>,
    ports: BTreeSet<i64>,
}

impl UsedValues {
    fn give_back(&mut self, other: &UsedValues) {
        for ip in &other.addresses {
            self.addresses.remove(ip);
        }
        for port in &other.ports {
            self.ports.remove(port);
        }
    }
}

/// The allocated addresses and node ports of a cluster.
#[derive(Debug)]
pub(crate) struct Pools {
    range: ServiceRange,
    used: Mutex<UsedValues>,
}

impl Pools {
    /// Creates pools without allocations.
    pub(crate) fn new(range: ServiceRange) -> Arc<Pools> {
        Arc::new(Pools {
            range,
            used: Mutex::default(),
        })
    }

    /// Returns the range that the server was started with; all ServiceCIDRs have its family.
    pub(crate) fn range(&self) -> &ServiceRange {
        &self.range
    }

    /// Starts a transaction that takes addresses out of these ranges.
    pub(crate) fn claim_from(self: &Arc<Self>, ranges: Vec<ServiceRange>) -> Claim {
        self.claim_within(Some(ranges))
    }

    /// Starts a transaction that allocates only given addresses, from any range.
    pub(crate) fn claim(self: &Arc<Self>) -> Claim {
        self.claim_within(None)
    }

    fn claim_within(self: &Arc<Self>, ranges: Option<Vec<ServiceRange>>) -> Claim {
        Claim {
            pools: self.clone(),
            ranges,
            taken: UsedValues::default(),
            released: UsedValues::default(),
            dry: None,
        }
    }

    fn used(&self) -> MutexGuard<'_, UsedValues> {
        // Each change of the sets is complete in itself, so they stay valid after a panic.
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the number of values at the start of a pool that are reserved for explicit requests.
fn reserved(size: u64, part: u64, most: u64) -> u64 {
    // As in kube-apiserver, a small pool has no reserved part.
    if size <= 16 {
        0
    } else {
        (size / part).max(16).min(most)
    }
}

/// Returns a free number from the upper part: a random one, or the next free one after it. If the upper part is full, the lower part is
/// used.
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

/// The addresses and ports that one write allocates and releases.
pub(crate) struct Claim {
    pools: Arc<Pools>,
    /// The ranges to allocate from; `None` if any address is valid.
    ranges: Option<Vec<ServiceRange>>,
    taken: UsedValues,
    released: UsedValues,
    /// The ports that a dry run would take.
    dry: Option<BTreeSet<i64>>,
}

/// The first node port that a dry run returns, which is above the range.
const DRY_PORT: i64 = 32_769;

impl Claim {
    /// Makes the claim allocate nothing. As in a dry run of kube-apiserver, an address must be in the range but may be in use, and a port
    /// must be free but may be outside of the range.
    pub(super) fn for_dry_run(mut self) -> Self {
        self.dry = Some(BTreeSet::new());
        self
    }

    /// Returns whether the claim allocates nothing.
    pub(super) fn is_dry(&self) -> bool {
        self.dry.is_some()
    }

    /// Allocates a specific address.
    pub(crate) fn address(&mut self, ip: &str) -> Result<(), Refusal> {
        if let (Some(_), Some(range)) = (&self.dry, self.ranges.iter().flatten().next()) {
            let ip = parse_ip(ip).ok_or(Refusal::OtherNetwork)?;
            return if range.has(ip) {
                Ok(())
            } else {
                Err(Refusal::OtherAddress(ip, range.clone()))
            };
        }
        let within = |ip: &IpAddr| match &self.ranges {
            Some(ranges) => ranges.iter().any(|range| range.has(*ip)),
            None => true,
        };
        let ip = parse_ip(ip).filter(within).ok_or(Refusal::OtherNetwork)?;
        if !self.pools.used().addresses.insert(ip) {
            return Err(Refusal::AddressTaken);
        }
        self.taken.addresses.insert(ip);
        Ok(())
    }

    /// Allocates any free address of any range.
    pub(crate) fn any_address(&mut self) -> Result<IpAddr, Refusal> {
        let ranges = self.ranges.as_deref().unwrap_or_default();
        if self.dry.is_some() {
            // As in kube-apiserver, a dry run shows the address of the network, which no Service ever gets.
            return ranges.first().map(|range| range.base).ok_or(Refusal::Full);
        }
        let mut used = self.pools.used();
        // As in kube-apiserver, allocation starts with a random range and goes on to the next one with room.
        let start = match ranges.len() {
            0 => 0,
            count => rand::random_range(0..count),
        };
        let mut turns = ranges[start..].iter().chain(&ranges[..start]);
        let free = |range: &ServiceRange| {
            let reserved = reserved(range.size(), 16, 256);
            let taken = |offset| used.addresses.contains(&range.address(offset));
            pick(range.offsets(), reserved, taken).map(|offset| range.address(offset))
        };
        let ip = turns.find_map(free).ok_or(Refusal::Full)?;
        used.addresses.insert(ip);
        self.taken.addresses.insert(ip);
        Ok(ip)
    }

    /// Marks an address for release when the write is stored.
    pub(crate) fn release_address(&mut self, ip: &str) {
        self.released.addresses.extend(parse_ip(ip));
    }

    /// Returns the allocated addresses, and those to be released.
    pub(super) fn addresses(&self) -> [Vec<IpAddr>; 2] {
        [&self.taken, &self.released].map(|used| used.addresses.iter().copied().collect())
    }

    /// Allocates a specific node port.
    pub(crate) fn port(&mut self, port: i64) -> Result<(), Refusal> {
        if let Some(dry) = &mut self.dry {
            if dry.contains(&port) || self.pools.used().ports.contains(&port) {
                return Err(Refusal::PortTaken);
            }
            dry.insert(port);
            return Ok(());
        }
        if !NODE_PORTS.contains(&port) {
            return Err(Refusal::OtherPort);
        }
        if !self.pools.used().ports.insert(port) {
            return Err(Refusal::PortTaken);
        }
        self.taken.ports.insert(port);
        Ok(())
    }

    /// Allocates any free node port.
    pub(crate) fn any_port(&mut self) -> Result<i64, Refusal> {
        if let Some(dry) = &mut self.dry {
            let port = dry.last().map_or(DRY_PORT, |last| last + 1);
            dry.insert(port);
            return Ok(port);
        }
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

    /// Marks a node port for release when the write is stored.
    pub(crate) fn release_port(&mut self, port: i64) {
        self.released.ports.insert(port);
    }
}

impl Allocation for Claim {
    fn commit(mut self: Box<Self>) {
        // Dropping the claim gives back what is still in `taken`.
        self.taken = UsedValues::default();
        self.pools.used().give_back(&self.released);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.pools.used().give_back(&self.taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(pools: &Arc<Pools>) -> Claim {
        pools.claim_from(vec![pools.range().clone()])
    }

    #[test]
    fn what_is_dropped_is_given_back_and_what_is_committed_is_kept() {
        let pools = Pools::new(ServiceRange::default());
        let mut claim = own(&pools);
        claim.address("10.96.0.9").unwrap();
        claim.port(30_100).unwrap();
        drop(claim);
        let mut claim = own(&pools);
        claim.address("10.96.0.9").unwrap();
        Box::new(claim).commit();
        assert_eq!(own(&pools).address("10.96.0.9"), Err(Refusal::AddressTaken));
        let mut claim = own(&pools);
        claim.release_address("10.96.0.9");
        Box::new(claim).commit();
        assert_eq!(own(&pools).address("10.96.0.9"), Ok(()));
    }

    #[test]
    fn the_lower_band_is_for_explicit_requests_until_the_upper_one_is_full() {
        let pools = Pools::new("10.0.0.0/27".parse().unwrap());
        let mut claim = own(&pools);
        let taken: BTreeSet<IpAddr> = (0..30).map(|_| claim.any_address().unwrap()).collect();
        assert_eq!(taken.len(), 30);
        assert_eq!(claim.any_address(), Err(Refusal::Full));
        let pools = Pools::new("10.0.0.0/24".parse().unwrap());
        let mut claim = own(&pools);
        let floor = IpAddr::from([10, 0, 0, 16]);
        assert!((0..200).all(|_| claim.any_address().unwrap() > floor));
    }

    #[test]
    fn addresses_and_ports_outside_the_ranges_are_refused() {
        let pools = Pools::new(ServiceRange::default());
        assert_eq!(own(&pools).address("10.97.0.1"), Err(Refusal::OtherNetwork));
        assert_eq!(own(&pools).address("10.96.0.0"), Err(Refusal::OtherNetwork));
        assert_eq!(own(&pools).port(80), Err(Refusal::OtherPort));
        let refused = |text: &str| text.parse::<ServiceRange>().unwrap_err().to_string();
        assert_eq!(
            refused("10.0.0.0/31"),
            "\"10.0.0.0/31\" is no CIDR with room for services"
        );
        assert_eq!(
            refused("fd00::/63"),
            "\"fd00::/63\" is too large for services: the shortest prefix of an IPv6 range is 64"
        );
    }

    #[test]
    fn an_address_of_a_large_network_may_be_far_into_it() {
        let pools = Pools::new(ServiceRange::default());
        let ranges = || vec![ServiceRange::of_network("10.0.0.0/8", "IPv4").unwrap()];
        let taken = |ip: &str| pools.claim_from(ranges()).address(ip);
        assert_eq!(taken("10.200.0.1"), Ok(()));
        assert_eq!(taken("10.255.255.255"), Err(Refusal::OtherNetwork));
        assert_eq!(taken("11.0.0.1"), Err(Refusal::OtherNetwork));
    }

    #[test]
    fn addresses_are_allocated_from_the_whole_of_a_large_network() {
        let offset = |address: IpAddr, base: IpAddr| match (address, base) {
            (IpAddr::V4(address), IpAddr::V4(base)) => {
                u128::from(u32::from(address) - u32::from(base))
            }
            (IpAddr::V6(address), IpAddr::V6(base)) => u128::from(address) - u128::from(base),
            _ => panic!("the families differ"),
        };
        for (text, size) in [("10.0.0.0/8", 1u128 << 24), ("fd00::/64", 1 << 64)] {
            let range: ServiceRange = text.parse().unwrap();
            let pools = Pools::new(range.clone());
            let mut claim = own(&pools);
            let offsets = (0..100).map(|_| offset(claim.any_address().unwrap(), range.base));
            let offsets: Vec<_> = offsets.collect();
            assert!(
                offsets.iter().all(|own| (257..size).contains(own)),
                "{text}"
            );
            // None of a hundred random addresses is in the upper half once in 2^100 runs.
            assert!(offsets.iter().any(|own| *own >= size / 2), "{text}");
        }
    }

    #[test]
    fn addresses_come_out_of_every_range_there_is_and_none_is_given_twice_where_they_overlap() {
        let range = |text| ServiceRange::of_network(text, "IPv4").unwrap();
        let pools = Pools::new("10.0.0.0/29".parse().unwrap());
        let ranges = vec![
            range("10.0.0.0/29"),
            range("10.0.0.4/30"),
            range("10.9.0.0/30"),
        ];
        let mut claim = pools.claim_from(ranges);
        let taken: BTreeSet<IpAddr> = (0..8).map(|_| claim.any_address().unwrap()).collect();
        assert_eq!(taken.len(), 8);
        assert_eq!(claim.any_address(), Err(Refusal::Full));
        // The last address of a range may be inside another range.
        let within = pools
            .claim_from(vec![range("10.0.0.4/30")])
            .address("10.0.0.7");
        assert_eq!(within, Err(Refusal::OtherNetwork));
        assert_eq!(
            pools.claim_from(Vec::new()).any_address(),
            Err(Refusal::Full)
        );
        assert_eq!(pools.claim().address("192.0.2.1"), Ok(()));
        assert_eq!(ServiceRange::of_network("fd00::/48", "IPv6"), None);
        let wide = ServiceRange::of_network("fd00::/64", "IPv6").unwrap();
        assert!(
            wide.has("fd00::ffff:0:0:1".parse().unwrap()) && !wide.has("fd00::".parse().unwrap())
        );
        for tiny in ["10.0.0.0/31", "10.0.0.0/32"] {
            assert_eq!(
                pools.claim_from(vec![range(tiny)]).any_address(),
                Err(Refusal::Full)
            );
        }
    }
}
