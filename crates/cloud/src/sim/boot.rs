//! The timing and memory of simulated nodes: boot and shutdown times, image pull speed, and the memory that is not
//! allocatable, with overrides by the user.
//!
//! Invariant: a profile changes only what it names; everything else keeps the typical values of [`Boot::of`].

use std::{num::NonZeroU64, time::Duration};

use mullion_api::ami::{AmiFamily, Os, WindowsEdition};

use crate::{MemoryOverhead, NodeTemplate};

/// The duration of a Windows reboot; joining a domain takes two reboots (EKS best practices: domain-joined gMSA).
const REBOOT: Duration = Duration::from_secs(60);
const REBOOTS_OF_A_JOIN: u32 = 2;
/// Per cent of the boot time that remain with EC2 Fast Launch, which saves up to 65 per cent.
const LEFT_BY_FAST_LAUNCH: u32 = 35;

/// Durations of the steps of an instance's life at speed 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boot {
    /// From the launch to `running`.
    pub pending: Duration,
    /// From `running` to the registration of the node.
    pub boot: Duration,
    /// From the call to terminate to `terminated`.
    pub shutdown: Duration,
}

impl Boot {
    /// Returns typical durations: a Linux node registers after about 45 s, a Windows Server Core node after about 5 min, and
    /// one with Desktop Experience a minute later.
    pub fn of(family: AmiFamily) -> Self {
        let (pending, boot, shutdown) = match family {
            AmiFamily::Windows(_, WindowsEdition::Core) => (12, 280, 25),
            AmiFamily::Windows(_, WindowsEdition::Full) => (12, 340, 25),
            _ => (6, 38, 8),
        };
        let [pending, boot, shutdown] = [pending, boot, shutdown].map(Duration::from_secs);
        Self {
            pending,
            boot,
            shutdown,
        }
    }
}

/// The images that a profile applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Images {
    /// All images of an operating system.
    Of(Os),
    /// The images of one family.
    Family(AmiFamily),
}

/// Measured values of the nodes of some images, which replace the typical ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeProfile {
    /// The images that the profile applies to.
    pub images: Images,
    /// From `running` to the registration of the node, at speed 1.
    pub boot: Option<Duration>,
    /// From the call to terminate to `terminated`, at speed 1.
    pub shutdown: Option<Duration>,
    /// Whether EC2 Fast Launch is enabled for the images, which is possible only for custom images.
    pub fast_launch: bool,
    /// Whether nodes join a domain while they boot.
    pub domain_join: bool,
    /// How fast nodes pull images.
    pub pulls: PullSpeed,
    /// The memory that is not available to pods.
    pub memory: KeptMemory,
}

/// The memory of nodes of an image that is not available to pods; `None` means Karpenter's estimate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptMemory {
    /// The part that hypervisor and kernel take.
    pub hidden: Option<MemoryOverhead>,
    /// The bytes that the image's kubelet reserves if the node's settings do not set it.
    pub reserved_bytes: Option<u64>,
}

/// The image pull speed at speed 1, in compressed bytes per millisecond; `None` means the typical value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PullSpeed {
    /// The download speed.
    pub download: Option<NonZeroU64>,
    /// The speed of the extraction after the download.
    pub extract: Option<NonZeroU64>,
}

/// The profiles of nodes; the first that applies to an image is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeProfiles(pub Vec<NodeProfile>);

impl NodeProfiles {
    fn about(&self, family: AmiFamily) -> Option<&NodeProfile> {
        self.0.iter().find(|profile| match profile.images {
            Images::Of(os) => os == family.os(),
            Images::Family(own) => own == family,
        })
    }

    /// Returns the known pull speed of a family's nodes.
    pub fn pulls(&self, family: AmiFamily) -> PullSpeed {
        self.about(family)
            .map_or_else(PullSpeed::default, |profile| profile.pulls)
    }

    /// Returns the template with the memory that simulated nodes really have. The template's own memory overhead is an
    /// estimate.
    pub fn with_actual_memory(&self, template: &NodeTemplate) -> NodeTemplate {
        let kept = self
            .about(template.family)
            .map_or_else(KeptMemory::default, |profile| profile.memory);
        let mut real = template.clone();
        // Not the template's: an operator's estimate must not change how much memory a simulated machine has.
        real.memory_overhead = kept.hidden.unwrap_or_default();
        let reserved = &mut real.kubelet.kube_reserved.memory_bytes;
        *reserved = reserved.or(kept.reserved_bytes);
        real
    }

    /// Returns the durations for a family's nodes.
    pub fn of(&self, family: AmiFamily) -> Boot {
        let mut boot = Boot::of(family);
        let Some(profile) = self.about(family) else {
            return boot;
        };
        boot.boot = profile.boot.unwrap_or(boot.boot);
        boot.shutdown = profile.shutdown.unwrap_or(boot.shutdown);
        if profile.fast_launch {
            boot.boot = boot.boot * LEFT_BY_FAST_LAUNCH / 100;
        }
        // Added after Fast Launch, which prepares an image and shortens no reboot for a domain.
        if profile.domain_join {
            boot.boot += REBOOT * REBOOTS_OF_A_JOIN;
        }
        boot
    }
}

#[cfg(test)]
mod tests {
    use mullion_api::{ami::WindowsRelease, eksctl::KubernetesVersion};

    use super::*;

    const CORE: AmiFamily = AmiFamily::Windows(WindowsRelease::V2022, WindowsEdition::Core);
    const FULL: AmiFamily = AmiFamily::Windows(WindowsRelease::V2022, WindowsEdition::Full);

    fn profile(images: Images) -> NodeProfile {
        NodeProfile {
            images,
            boot: None,
            shutdown: None,
            fast_launch: false,
            domain_join: false,
            pulls: PullSpeed::default(),
            memory: KeptMemory::default(),
        }
    }

    #[test]
    fn nodes_have_the_memory_of_their_profile_whatever_their_template_assumes() {
        let mut assumed = NodeTemplate::new(CORE, KubernetesVersion::NEWEST);
        assumed.memory_overhead = MemoryOverhead::of_fraction(0.02).expect("a part");
        let real = NodeProfiles::default().with_actual_memory(&assumed);
        assert_eq!(real.memory_overhead, MemoryOverhead::default());
        assert_eq!(real.kubelet.kube_reserved.memory_bytes, None);
        let known = NodeProfile {
            memory: KeptMemory {
                hidden: MemoryOverhead::of_fraction(0.01),
                reserved_bytes: Some(1 << 30),
            },
            ..profile(Images::Of(Os::Windows))
        };
        let profiles = NodeProfiles(vec![known]);
        let mut real = profiles.with_actual_memory(&assumed);
        assert_eq!(real.memory_overhead.of_mib(1000), 10);
        assert_eq!(real.kubelet.kube_reserved.memory_bytes, Some(1 << 30));
        // A setting of the node takes precedence, because it is passed to its kubelet.
        real.kubelet.kube_reserved.memory_bytes = Some(5);
        let told = profiles.with_actual_memory(&real).kubelet.kube_reserved;
        assert_eq!(told.memory_bytes, Some(5));
    }

    #[test]
    fn a_desktop_a_domain_and_fast_launch_change_the_boot_time_of_windows() {
        let seconds =
            |profile: NodeProfile, family| NodeProfiles(vec![profile]).of(family).boot.as_secs();
        let windows = || profile(Images::Of(Os::Windows));
        assert_eq!(seconds(windows(), CORE), 280);
        assert_eq!(seconds(windows(), FULL), 340);
        let joins = NodeProfile {
            domain_join: true,
            ..windows()
        };
        assert_eq!(seconds(joins.clone(), CORE), 280 + 120);
        let fast = NodeProfile {
            fast_launch: true,
            ..joins
        };
        assert_eq!(seconds(fast.clone(), CORE), 98 + 120);
        assert_eq!(seconds(fast, AmiFamily::AmazonLinux2023), 38);
    }

    #[test]
    fn the_first_profile_about_an_image_counts() {
        let known = NodeProfile {
            boot: Some(Duration::from_secs(90)),
            shutdown: Some(Duration::from_secs(5)),
            ..profile(Images::Family(FULL))
        };
        let slow = PullSpeed {
            extract: NonZeroU64::new(9_000),
            ..PullSpeed::default()
        };
        let other = NodeProfile {
            boot: Some(Duration::from_secs(200)),
            pulls: slow,
            ..profile(Images::Of(Os::Windows))
        };
        let profiles = NodeProfiles(vec![known, other]);
        assert_eq!(profiles.of(FULL).boot.as_secs(), 90);
        assert_eq!(profiles.of(FULL).shutdown.as_secs(), 5);
        assert_eq!(profiles.of(CORE).boot.as_secs(), 200);
        assert_eq!(profiles.pulls(CORE), slow);
        assert_eq!(profiles.pulls(FULL), PullSpeed::default());
    }
}
