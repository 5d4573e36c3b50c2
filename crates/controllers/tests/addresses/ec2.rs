//! Interfaces in one subnet, with calls that take a while and are written down.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::Ipv4Addr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use mullion_cloud::{
    AddressError, Addresses, BoxFuture, InstanceId, InterfaceFacts, InterfaceFound, InterfaceId,
    SubnetFacts,
};
use mullion_engine::ip::{Cidr, Kind, Listing};
use tokio::time::{Instant, sleep};

/// How long every call takes.
const CALL: Duration = Duration::from_millis(100);

/// Longer than a caller waits for an answer.
const TOO_LONG: Duration = Duration::from_secs(300);

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// EC2 does it, and answers when nobody waits any more.
    Late,
    /// EC2 does it twice, as when a library repeats a call, and answers the second time.
    Twice,
    /// EC2 never hears of it.
    Never,
    /// EC2 refuses the rate.
    Throttled,
}

/// Cheap to clone; all clones are one.
#[derive(Clone, Debug)]
pub(crate) struct Ec2(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    began: Instant,
    free: BTreeSet<u32>,
    subnet: Cidr,
    nics: BTreeMap<Arc<str>, Nic>,
    /// What was called, and when.
    calls: Vec<(Duration, &'static str)>,
    /// What becomes of the next calls of a name.
    fates: BTreeMap<&'static str, VecDeque<Fate>>,
}

#[derive(Debug)]
struct Nic {
    instance_type: Arc<str>,
    nitro: bool,
    slots: usize,
    blocks: BTreeSet<(Kind, u32)>,
}

impl Ec2 {
    /// An empty subnet.
    pub(crate) fn new(subnet: &str) -> Self {
        let subnet: Cidr = subnet.parse().expect("a block");
        let first = subnet.ip.to_bits();
        let size = 1_u32 << (32 - subnet.bits);
        Ec2(Arc::new(Mutex::new(Inner {
            began: Instant::now(),
            free: (first + 4..first + size - 1).collect(),
            subnet,
            nics: BTreeMap::new(),
            calls: Vec::new(),
            fates: BTreeMap::new(),
        })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An instance with an interface that has nothing beside its primary address.
    pub(crate) fn instance(&self, id: &str, instance_type: &str, slots: usize) {
        let nic = Nic {
            instance_type: instance_type.into(),
            nitro: !instance_type.starts_with("m4"),
            slots,
            blocks: BTreeSet::new(),
        };
        self.inner().nics.insert(id.into(), nic);
    }

    /// The instance is terminated, and what it had is free.
    pub(crate) fn terminate(&self, id: &str) {
        let ips = self.has(id);
        let mut inner = self.inner();
        inner.nics.remove(id);
        inner.free.extend(ips.into_iter().map(Ipv4Addr::to_bits));
    }

    /// Somebody else takes all addresses but so many.
    pub(crate) fn fill_but(&self, left: usize) {
        let mut inner = self.inner();
        while inner.free.len() > left {
            inner.free.pop_last();
        }
    }

    /// All addresses of an instance, single ones and those of prefixes.
    pub(crate) fn has(&self, id: &str) -> BTreeSet<Ipv4Addr> {
        let inner = self.inner();
        let blocks = inner.nics[id].blocks.iter();
        blocks
            .flat_map(|(kind, ip)| *ip..*ip + kind.size() as u32)
            .map(Ipv4Addr::from_bits)
            .collect()
    }

    /// When calls of this name came, as times since the start.
    pub(crate) fn calls(&self, name: &str) -> Vec<Duration> {
        let inner = self.inner();
        let named = inner.calls.iter().filter(|call| call.1 == name);
        named.map(|call| call.0).collect()
    }

    /// The time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.inner().began.elapsed()
    }

    /// Says what becomes of the next calls of this name.
    pub(crate) fn calls_meet(&self, name: &'static str, fates: &[Fate]) {
        let mut inner = self.inner();
        inner.fates.entry(name).or_default().extend(fates);
    }

    fn call<'a, T: Send + 'a>(
        &'a self,
        name: &'static str,
        act: impl Fn(&mut Inner) -> Result<T, AddressError> + Send + 'a,
    ) -> BoxFuture<'a, Result<T, AddressError>> {
        let at = self.elapsed();
        let mut inner = self.inner();
        inner.calls.push((at, name));
        let fate = inner.fates.get_mut(name).and_then(VecDeque::pop_front);
        drop(inner);
        Box::pin(async move {
            sleep(CALL).await;
            let ended = match fate {
                Some(Fate::Throttled) => Err(AddressError::Throttled),
                Some(Fate::Never) => Err(AddressError::NoAnswer),
                Some(Fate::Twice) => {
                    let inner = &mut self.inner();
                    act(inner).and_then(|_| act(inner))
                }
                Some(Fate::Late) | None => act(&mut self.inner()),
            };
            if let Some(Fate::Late | Fate::Never) = fate {
                sleep(TOO_LONG).await;
            }
            ended
        })
    }
}

impl Inner {
    fn nic(&mut self, id: &InterfaceId) -> Result<&mut Nic, AddressError> {
        let instance = id.0.trim_start_matches("eni-");
        let nic = self.nics.get_mut(instance);
        nic.ok_or_else(|| AddressError::NoInterface(id.clone()))
    }

    fn assign(
        &mut self,
        id: &InterfaceId,
        kind: Kind,
        count: usize,
    ) -> Result<Vec<Cidr>, AddressError> {
        let bits = self.subnet.bits;
        let free = &self.free;
        let size = kind.size() as u32;
        let fits = |ip: &&u32| {
            (**ip).is_multiple_of(size) && (**ip..**ip + size).all(|ip| free.contains(&ip))
        };
        let chosen: Vec<u32> = free.iter().filter(fits).take(count).copied().collect();
        if chosen.len() < count {
            return Err(match kind {
                Kind::Address => AddressError::NoAddress,
                Kind::Prefix => AddressError::NoPrefix,
            });
        }
        let nic = self.nic(id)?;
        if nic.blocks.len() + count > nic.slots {
            return Err(AddressError::NoSlot);
        }
        nic.blocks.extend(chosen.iter().map(|ip| (kind, *ip)));
        for ip in &chosen {
            for ip in *ip..*ip + size {
                self.free.remove(&ip);
            }
        }
        let bits = if kind == Kind::Prefix { 28 } else { bits };
        let cidr = |ip: u32| Cidr::new(Ipv4Addr::from_bits(ip), bits);
        Ok(chosen.into_iter().map(cidr).collect())
    }

    fn give_back(
        &mut self,
        id: &InterfaceId,
        kind: Kind,
        blocks: &[Cidr],
    ) -> Result<(), AddressError> {
        let nic = self.nic(id)?;
        for block in blocks {
            let ip = block.ip.to_bits();
            assert!(nic.blocks.remove(&(kind, ip)), "{block} is not there");
        }
        let ips = blocks.iter().map(|block| block.ip.to_bits());
        self.free
            .extend(ips.flat_map(|ip| ip..ip + kind.size() as u32));
        Ok(())
    }

    fn listing(&mut self, id: &InterfaceId) -> Result<Listing, AddressError> {
        let bits = self.subnet.bits;
        let nic = self.nic(id)?;
        let of = |kind: Kind, bits: u8| {
            let blocks = nic.blocks.iter().filter(move |block| block.0 == kind);
            blocks
                .map(|block| Cidr::new(Ipv4Addr::from_bits(block.1), bits))
                .collect()
        };
        Ok(Listing {
            addresses: of(Kind::Address, bits),
            prefixes: of(Kind::Prefix, 28),
        })
    }
}

impl Inner {
    fn find(&mut self, instance: &InstanceId) -> Option<InterfaceFound> {
        let subnet_cidr = self.subnet;
        let nic = self.nics.get(&instance.0)?;
        let facts = InterfaceFacts {
            id: InterfaceId(format!("eni-{}", instance.0).into()),
            subnet: "subnet-1".into(),
            subnet_cidr,
            primary: Ipv4Addr::new(10, 9, 9, 9),
            slots: nic.slots,
            instance_type: nic.instance_type.clone(),
            nitro: nic.nitro,
        };
        let listing = self.listing(&facts.id).ok()?;
        let instance = instance.clone();
        Some(InterfaceFound {
            instance,
            facts,
            listing,
        })
    }
}

impl Addresses for Ec2 {
    fn assign<'a>(
        &'a self,
        interface: &'a InterfaceId,
        kind: Kind,
        count: u32,
    ) -> BoxFuture<'a, Result<Vec<Cidr>, AddressError>> {
        self.call("assign", move |inner| {
            inner.assign(interface, kind, count as usize)
        })
    }

    fn give_back<'a>(
        &'a self,
        interface: &'a InterfaceId,
        kind: Kind,
        blocks: &'a [Cidr],
    ) -> BoxFuture<'a, Result<(), AddressError>> {
        self.call("give-back", move |inner| {
            inner.give_back(interface, kind, blocks)
        })
    }

    fn list<'a>(
        &'a self,
        interface: &'a InterfaceId,
    ) -> BoxFuture<'a, Result<Listing, AddressError>> {
        self.call("list", move |inner| inner.listing(interface))
    }

    fn interfaces_of<'a>(
        &'a self,
        instances: &'a [InstanceId],
    ) -> BoxFuture<'a, Result<Vec<InterfaceFound>, AddressError>> {
        self.call("interfaces", move |inner| {
            Ok(instances.iter().filter_map(|id| inner.find(id)).collect())
        })
    }

    fn subnet<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<SubnetFacts, AddressError>> {
        self.call("subnet", move |inner| {
            Ok(SubnetFacts {
                cidr: inner.subnet,
                free_addresses: inner.free.len(),
                free_prefixes: 0,
            })
        })
    }
}
