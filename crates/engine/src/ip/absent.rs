//! Addresses that pods have but EC2 does not have on the interface, and released addresses that must rest if they
//! come back.

use core::net::Ipv4Addr;

use super::cidr::Cidr;
use super::event::PodUid;

/// Addresses that are not on the interface although a pod has them, or had them a short time ago.
#[derive(Clone, Debug, Default)]
pub struct Absent {
    lost: Vec<LostAddress>,
    resting: Vec<(Ipv4Addr, u64)>,
}

/// An address that a pod has but the interface has not.
#[derive(Clone, Debug)]
struct LostAddress {
    pod: PodUid,
    address: Cidr,
    /// Whether the pod was told that it lost the address.
    reported: bool,
}

impl Absent {
    /// Notes that `pod` has `address`, which is not on the interface.
    pub(super) fn lose(&mut self, pod: PodUid, address: Cidr) {
        let reported = false;
        self.lost.push(LostAddress {
            pod,
            address,
            reported,
        });
    }

    /// Notes that `ip` was released and may not be given to a pod before `until`.
    pub(super) fn rest(&mut self, ip: Ipv4Addr, until: u64) {
        self.resting.push((ip, until));
    }

    /// Returns the pod that has `ip`, which is on the interface now, and forgets about it.
    pub(super) fn reclaim(&mut self, ip: Ipv4Addr) -> Option<PodUid> {
        let at = self.lost.iter().position(|lost| lost.address.ip == ip)?;
        Some(self.lost.remove(at).pod)
    }

    /// Returns the time until which `ip`, which has come back to the interface, must rest; `None` if it need not.
    pub(super) fn resting(&self, ip: Ipv4Addr, now: u64) -> Option<u64> {
        let times = self.resting.iter().filter(|(resting, _)| *resting == ip);
        times
            .map(|(_, until)| *until)
            // An address may have been released more than once; the longest rest counts.
            .max()
            .filter(|until| *until > now)
    }

    /// Returns the address that `pod` has and the interface has not.
    pub(super) fn of(&self, pod: &PodUid) -> Option<Cidr> {
        let lost = self.lost.iter().find(|lost| lost.pod == *pod)?;
        Some(lost.address)
    }

    /// Forgets a pod that is gone: its address rests until `until`, should it come back.
    pub(super) fn release(&mut self, pod: &PodUid, until: u64) {
        if let Some(at) = self.lost.iter().position(|lost| lost.pod == *pod) {
            let lost = self.lost.remove(at);
            self.rest(lost.address.ip, until);
        }
    }

    /// Returns the lost addresses that pods have not heard of, and marks them as reported.
    pub(super) fn take_unreported(&mut self) -> impl Iterator<Item = (PodUid, Cidr)> {
        let unreported = self.lost.iter_mut().filter(|lost| !lost.reported);
        unreported.map(|lost| {
            lost.reported = true;
            (lost.pod.clone(), lost.address)
        })
    }

    /// Returns the pods whose address is not on the interface.
    pub fn lost(&self) -> impl Iterator<Item = (&PodUid, Cidr)> {
        self.lost.iter().map(|lost| (&lost.pod, lost.address))
    }

    /// Forgets addresses that have rested.
    pub(super) fn prune(&mut self, now: u64) {
        self.resting.retain(|(_, until)| *until > now);
    }
}
