//! The values that nodes of an image family report: operating system image, kernel, runtime and kubelet.
//!
//! Invariant: the values are a table with one row per family, whose versions follow the Kubernetes version as those of EKS's images do. Ids
//! are derived from family and version, so they are the same on every run.

use std::collections::BTreeMap;

use jiff::{
    Span,
    civil::{Date, date},
};
use mullion_api::{
    ami::{AmiFamily, Os, WindowsEdition, WindowsRelease},
    eksctl::KubernetesVersion,
    karpenter::{AmiSelectorTerm, Operator, Requirement},
    labels,
};

use crate::{
    catalogue::{Arch, InstanceType},
    pattern::is_like,
};
use serde::{Deserialize, Serialize};

/// The hardware that an image has drivers for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ImageVariant {
    /// Any hardware of its architecture, as far as is known.
    #[default]
    Any,
    /// Machines without accelerators.
    Standard,
    /// Machines with NVIDIA GPUs.
    Nvidia,
    /// Machines with AWS Neuron devices.
    Neuron,
}

impl ImageVariant {
    /// Returns whether machines of a type should run images of this variant.
    pub fn fits(self, instance_type: &InstanceType) -> bool {
        let (gpu, neuron) = (
            instance_type.gpu.is_some(),
            instance_type.neuron_devices > 0,
        );
        match self {
            Self::Any => true,
            Self::Standard => !gpu && !neuron,
            Self::Nvidia => gpu,
            Self::Neuron => neuron,
        }
    }

    /// Returns what the status of a class says that images of this variant require of instance types (AWS provider:
    /// `Variant.Requirements`).
    pub fn requirements(self) -> Vec<Requirement> {
        let of = |key: &str, operator| Requirement::new(key, operator, [""; 0]);
        let (gpu, accelerator) = (
            labels::INSTANCE_GPU_COUNT,
            labels::INSTANCE_ACCELERATOR_COUNT,
        );
        match self {
            Self::Any => Vec::new(),
            Self::Standard => vec![
                of(accelerator, Operator::DoesNotExist),
                of(gpu, Operator::DoesNotExist),
            ],
            Self::Nvidia => vec![of(gpu, Operator::Exists)],
            Self::Neuron => vec![of(accelerator, Operator::Exists)],
        }
    }

    /// Returns the variant of an image that requires this of instance types.
    pub fn requiring(requirements: &[Requirement]) -> Self {
        let has = |own: &Requirement| requirements.contains(own);
        let mut all = [Self::Standard, Self::Nvidia, Self::Neuron].into_iter();
        all.find(|variant| variant.requirements().iter().all(has))
            .unwrap_or_default()
    }
}

/// Returns the kinds of hardware that a family has images for; one image may be for two of them.
fn variants(family: AmiFamily, arch: Arch) -> &'static [ImageVariant] {
    use ImageVariant::{Any, Neuron, Nvidia, Standard};
    match (family, arch) {
        (
            AmiFamily::AmazonLinux2
            | AmiFamily::AmazonLinux2023
            | AmiFamily::Bottlerocket
            | AmiFamily::BottlerocketFips,
            Arch::Amd64,
        ) => &[Standard, Nvidia, Neuron],
        (
            AmiFamily::AmazonLinux2023 | AmiFamily::Bottlerocket | AmiFamily::BottlerocketFips,
            Arch::Arm64,
        ) => &[Standard, Nvidia],
        (AmiFamily::AmazonLinux2, Arch::Arm64) => &[Standard],
        _ => &[Any],
    }
}

/// A machine image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeImage {
    /// Family.
    pub family: AmiFamily,
    /// Kubernetes version.
    pub version: KubernetesVersion,
    /// Architecture.
    pub arch: Arch,
    /// The number of months between the first image of the family and this one.
    pub release: u32,
    /// Image id, `ami-0123456789abcdef0`.
    pub id: String,
    /// Image name as EKS publishes it.
    pub name: String,
    /// The hardware that it has drivers for.
    pub variant: ImageVariant,
}

impl NodeImage {
    /// Returns the first image of a family.
    pub fn new(family: AmiFamily, version: KubernetesVersion, arch: Arch) -> Self {
        Self::released(family, version, arch, 0)
    }

    /// Returns the image of a family for machines without accelerators that was published `release` months after the first
    /// one.
    pub fn released(
        family: AmiFamily,
        version: KubernetesVersion,
        arch: Arch,
        release: u32,
    ) -> Self {
        Self::of_variant(family, version, arch, release, variants(family, arch)[0])
    }

    /// Returns the images of a family's release, one for each kind of hardware: that for machines without accelerators first.
    pub fn all_released(
        family: AmiFamily,
        version: KubernetesVersion,
        arch: Arch,
        release: u32,
    ) -> impl Iterator<Item = Self> {
        let variants = variants(family, arch).iter();
        variants.map(move |own| Self::of_variant(family, version, arch, release, *own))
    }

    /// Returns the image of a family's release for machines of a type; that for machines without accelerators if there is no
    /// other.
    pub fn for_type(
        family: AmiFamily,
        version: KubernetesVersion,
        instance_type: &InstanceType,
        release: u32,
    ) -> Self {
        let arch = instance_type.arch;
        let mut all = Self::all_released(family, version, arch, release);
        let fitting = all.find(|image| image.variant.fits(instance_type));
        fitting.unwrap_or_else(|| Self::released(family, version, arch, release))
    }

    fn of_variant(
        family: AmiFamily,
        version: KubernetesVersion,
        arch: Arch,
        release: u32,
        variant: ImageVariant,
    ) -> Self {
        let name = name(family, version, arch, release, variant);
        Self {
            // From the name, so that ids survive a restart without being stored.
            id: format!("ami-0{:016x}", fnv1a(&name)),
            family,
            version,
            arch,
            release,
            name,
            variant,
        }
    }

    /// Returns whether a term of an EC2NodeClass without an SSM parameter selects this image: by an alias of the newest or the image's own release,
    /// by its id, or by its name and tags; `*` and `?` in the name match any characters. The owner of the image is Amazon.
    pub fn is_selected_by(&self, term: &AmiSelectorTerm, tags: &BTreeMap<String, String>) -> bool {
        if let Some(alias) = &term.alias {
            let release = alias.split_once('@').map(|(_, release)| release);
            return release.is_some_and(|own| own == LATEST || self.is_of_release(own));
        }
        if let Some(id) = &term.id {
            return *id == self.id;
        }
        // Without an owner Karpenter searches the account itself and Amazon.
        let is_owned = term.owner.as_deref().is_none_or(|owner| owner == "amazon");
        let name = term.name.as_deref();
        let is_named = name.is_none_or(|name| is_like(name, &self.name));
        let is_tagged = term.tags.iter().all(|(key, wanted)| {
            let value = tags.get(key);
            value.is_some_and(|value| wanted == "*" || wanted == value)
        });
        // An owner alone selects nothing, or it would select all of Amazon's images.
        let is_said = name.is_some() || !term.tags.is_empty();
        is_said && is_owned && is_named && is_tagged
    }

    /// Returns whether the name ends with a release in the form of aliases: `v20250317`, `1.32.0`.
    fn is_of_release(&self, release: &str) -> bool {
        let own = self.name.rsplit_once("-v").map(|(_, own)| own);
        let own = own.map(|own| own.split_once('-').map_or(own, |(own, _)| own));
        own == Some(release.trim_start_matches('v'))
    }

    /// Returns the operating system.
    pub fn os(&self) -> Os {
        self.family.os()
    }

    /// Returns `status.nodeInfo.osImage`.
    pub fn os_image(&self) -> String {
        match self.family {
            AmiFamily::AmazonLinux2 => "Amazon Linux 2".into(),
            AmiFamily::AmazonLinux2023 | AmiFamily::Custom => "Amazon Linux 2023.6.20250303".into(),
            AmiFamily::Bottlerocket | AmiFamily::BottlerocketFips => {
                let suffixes = bottlerocket_suffixes(self.family, self.variant);
                format!(
                    "Bottlerocket OS 1.32.0 (aws-k8s-{}{suffixes})",
                    self.version
                )
            }
            AmiFamily::Ubuntu2004 | AmiFamily::UbuntuPro2004 => "Ubuntu 20.04.6 LTS".into(),
            AmiFamily::Ubuntu2204 | AmiFamily::UbuntuPro2204 => "Ubuntu 22.04.5 LTS".into(),
            AmiFamily::Ubuntu2404 | AmiFamily::UbuntuPro2404 => "Ubuntu 24.04.2 LTS".into(),
            AmiFamily::Ubuntu2604 | AmiFamily::UbuntuPro2604 => "Ubuntu 26.04 LTS".into(),
            AmiFamily::Windows(release, _) => {
                format!("Windows Server {} Datacenter", release.year())
            }
        }
    }

    /// Returns `status.nodeInfo.kernelVersion`. On Windows its first three numbers are the build.
    pub fn kernel_version(&self) -> String {
        match self.family {
            AmiFamily::AmazonLinux2 => match self.arch {
                Arch::Amd64 => "5.10.173-154.642.amzn2.x86_64".into(),
                Arch::Arm64 => "5.10.173-154.642.amzn2.aarch64".into(),
            },
            AmiFamily::AmazonLinux2023 | AmiFamily::Custom => match self.arch {
                Arch::Amd64 => "6.1.129-138.220.amzn2023.x86_64".into(),
                Arch::Arm64 => "6.1.129-138.220.amzn2023.aarch64".into(),
            },
            AmiFamily::Bottlerocket | AmiFamily::BottlerocketFips => "6.1.128".into(),
            AmiFamily::Ubuntu2004 | AmiFamily::UbuntuPro2004 => "5.15.0-1080-aws".into(),
            AmiFamily::Ubuntu2204 | AmiFamily::UbuntuPro2204 => "6.8.0-1024-aws".into(),
            AmiFamily::Ubuntu2404 | AmiFamily::UbuntuPro2404 => "6.8.0-1024-aws".into(),
            AmiFamily::Ubuntu2604 | AmiFamily::UbuntuPro2604 => "7.0.0-1004-aws".into(),
            AmiFamily::Windows(release, _) => {
                let revision = match release {
                    WindowsRelease::V2019 => 4131,
                    WindowsRelease::V2022 => 1607,
                    WindowsRelease::V2025 => 3476,
                };
                format!("{}.{revision}", release.build())
            }
        }
    }

    /// Returns `status.nodeInfo.containerRuntimeVersion`.
    pub fn container_runtime_version(&self) -> &'static str {
        let recent = self.version.minor() >= 31;
        match (self.family, recent) {
            (AmiFamily::Windows(..), false) => "containerd://1.6.6",
            (AmiFamily::Windows(..), true) => "containerd://1.7.20",
            (AmiFamily::AmazonLinux2, false) => "containerd://1.6.19",
            (AmiFamily::Bottlerocket | AmiFamily::BottlerocketFips, _) => {
                "containerd://1.7.25+bottlerocket"
            }
            (_, _) => "containerd://1.7.25",
        }
    }

    /// Returns `status.nodeInfo.kubeletVersion`.
    pub fn kubelet_version(&self) -> String {
        let (patch, build) = kubelet_build(self.version.minor());
        format!("v{}.{patch}-eks-{build}", self.version)
    }

    /// Returns the value of `node.kubernetes.io/windows-build`, on Windows.
    pub fn windows_build(&self) -> Option<&'static str> {
        Some(self.family.windows_release()?.build())
    }

    /// Returns the labels that nodes have because of their image.
    pub fn labels(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let os = (labels::OS, self.os().as_str());
        let build = self.windows_build();
        [os].into_iter()
            .chain(build.map(|build| (labels::WINDOWS_BUILD, build)))
    }
}

/// The version in an alias that stands for the newest release.
pub const LATEST: &str = "latest";

/// Returns the architectures for which images of an operating system are published.
pub(crate) fn architectures(os: Os) -> &'static [Arch] {
    match os {
        Os::Windows => &[Arch::Amd64],
        Os::Linux => &[Arch::Amd64, Arch::Arm64],
    }
}

/// Returns the suffixes of the names of Bottlerocket's images: for NVIDIA GPUs, and for FIPS.
pub(crate) fn bottlerocket_suffixes(family: AmiFamily, variant: ImageVariant) -> &'static str {
    match (variant, family) {
        (ImageVariant::Nvidia, AmiFamily::BottlerocketFips) => "-nvidia-fips",
        (ImageVariant::Nvidia, _) => "-nvidia",
        (_, AmiFamily::BottlerocketFips) => "-fips",
        _ => "",
    }
}

/// Returns the word for a variant in the names of Amazon Linux 2023's images.
pub(crate) fn variant_word(variant: ImageVariant) -> &'static str {
    match variant {
        ImageVariant::Any | ImageVariant::Standard => "standard",
        ImageVariant::Nvidia => "nvidia",
        ImageVariant::Neuron => "neuron",
    }
}

/// Returns the name of an image in EKS's form.
fn name(
    family: AmiFamily,
    version: KubernetesVersion,
    arch: Arch,
    release: u32,
    variant: ImageVariant,
) -> String {
    let day = |first: Date, form: &str| {
        let months = Span::new().try_months(release).unwrap_or_default();
        first.saturating_add(months).strftime(form).to_string()
    };
    let machine = match arch {
        Arch::Amd64 => "x86_64",
        Arch::Arm64 => "arm64",
    };
    match family {
        AmiFamily::AmazonLinux2 => {
            let day = day(date(2025, 3, 17), "%Y%m%d");
            let machine = match (arch, variant) {
                (Arch::Amd64, ImageVariant::Nvidia | ImageVariant::Neuron) => "gpu-",
                (Arch::Amd64, _) => "",
                (Arch::Arm64, _) => "arm64-",
            };
            format!("amazon-eks-{machine}node-{version}-v{day}")
        }
        AmiFamily::AmazonLinux2023 => {
            let day = day(date(2025, 3, 17), "%Y%m%d");
            let word = variant_word(variant);
            format!("amazon-eks-node-al2023-{machine}-{word}-{version}-v{day}")
        }
        AmiFamily::Bottlerocket | AmiFamily::BottlerocketFips => {
            let minor = 32 + release;
            let suffixes = bottlerocket_suffixes(family, variant);
            format!("bottlerocket-aws-k8s-{version}{suffixes}-{machine}-v1.{minor}.0-cacc4ce9")
        }
        AmiFamily::Windows(windows, edition) => {
            let edition = match edition {
                WindowsEdition::Core => "Core",
                WindowsEdition::Full => "Full",
            };
            let day = day(date(2025, 3, 14), "%Y.%m.%d");
            format!(
                "Windows_Server-{}-English-{edition}-EKS_Optimized-{version}-{day}",
                windows.year()
            )
        }
        AmiFamily::Custom => format!("custom-{machine}-{version}"),
        ubuntu => format!(
            "ubuntu-eks/k8s_{version}/images/{}-{}-server-{}",
            ubuntu.as_str().to_ascii_lowercase(),
            arch.as_str(),
            day(date(2025, 3, 5), "%Y%m%d")
        ),
    }
}

/// Returns the patch release and build id of EKS's kubelet.
fn kubelet_build(minor: u32) -> (u32, &'static str) {
    match minor {
        23 => (17, "a59e1f0"),
        24 => (11, "a59e1f0"),
        25 => (16, "ba74326"),
        26 => (15, "ba74326"),
        27 => (16, "a737599"),
        28 => (15, "473151a"),
        29 => (15, "473151a"),
        30 => (11, "473151a"),
        31 => (7, "473151a"),
        32 => (3, "473151a"),
        33 => (5, "113cf36"),
        34 => (2, "ecaa3a6"),
        35 => (1, "ecaa3a6"),
        _ => (0, "ecaa3a6"),
    }
}

pub(crate) fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn image(family: AmiFamily, minor: u32) -> NodeImage {
        let version = KubernetesVersion::from_minor(minor).unwrap();
        NodeImage::new(family, version, Arch::Amd64)
    }

    #[test]
    fn nodes_report_what_the_best_practices_guide_shows() {
        let windows = image(
            AmiFamily::Windows(WindowsRelease::V2022, WindowsEdition::Full),
            24,
        );
        assert_eq!(windows.os_image(), "Windows Server 2022 Datacenter");
        assert_eq!(windows.kernel_version(), "10.0.20348.1607");
        assert_eq!(windows.container_runtime_version(), "containerd://1.6.6");
        assert_eq!(windows.windows_build(), Some("10.0.20348"));
        let linux = image(AmiFamily::AmazonLinux2, 24);
        assert_eq!(linux.os_image(), "Amazon Linux 2");
        assert_eq!(linux.kernel_version(), "5.10.173-154.642.amzn2.x86_64");
        assert_eq!(linux.container_runtime_version(), "containerd://1.6.19");
        assert_eq!(linux.kubelet_version(), "v1.24.11-eks-a59e1f0");
    }

    #[test]
    fn terms_select_images_by_alias_id_and_name() {
        let version = KubernetesVersion::from_minor(31).unwrap();
        let of = |family, release| NodeImage::released(family, version, Arch::Amd64, release);
        let al2023 = of(AmiFamily::AmazonLinux2023, 1);
        let tags = BTreeMap::from([("team".to_owned(), "b".to_owned())]);
        let selects = |image: &NodeImage, term: serde_json::Value| {
            image.is_selected_by(&serde_json::from_value(term).unwrap(), &tags)
        };
        let yes = [
            json!({"alias": "al2023@latest"}),
            json!({"alias": "al2023@v20250417"}),
            json!({"id": al2023.id}),
            json!({"name": al2023.name}),
            json!({"name": "amazon-eks-node-al2023-*-1.31-v2025041?"}),
            json!({"name": "*", "owner": "amazon"}),
            json!({"tags": {"team": "b"}}),
            json!({"name": "amazon-*", "tags": {"team": "*"}}),
        ];
        for term in yes {
            assert!(selects(&al2023, term.clone()), "{term}");
        }
        let no = [
            json!({"alias": "al2023@v20250317"}),
            json!({"id": of(AmiFamily::AmazonLinux2023, 0).id}),
            json!({"name": "amazon-eks-node-al2023-*-1.31-v2025041"}),
            json!({"name": "*", "owner": "self"}),
            json!({"name": "*", "tags": {"team": "a"}}),
            json!({"tags": {"team": "a"}}),
            json!({"tags": {"team": "b", "stage": "*"}}),
            json!({"name": "bottlerocket-*", "tags": {"team": "b"}}),
            json!({"ssmParameter": "/a/b"}),
        ];
        for term in no {
            assert!(!selects(&al2023, term.clone()), "{term}");
        }
        let bottlerocket = of(AmiFamily::Bottlerocket, 0);
        for alias in ["bottlerocket@v1.32.0", "bottlerocket@1.32.0"] {
            assert!(selects(&bottlerocket, json!({ "alias": alias })));
        }
    }

    #[test]
    fn ids_differ_by_image_and_repeat() {
        let al2023 = image(AmiFamily::AmazonLinux2023, 31);
        assert_eq!(al2023, image(AmiFamily::AmazonLinux2023, 31));
        assert_ne!(al2023.id, image(AmiFamily::AmazonLinux2023, 32).id);
        assert_eq!(al2023.id.len(), "ami-0123456789abcdef0".len());
        let version = KubernetesVersion::from_minor(31).unwrap();
        let next = NodeImage::released(AmiFamily::AmazonLinux2023, version, Arch::Amd64, 1);
        assert_ne!(next.id, al2023.id);
        assert_eq!(
            next.name,
            "amazon-eks-node-al2023-x86_64-standard-1.31-v20250417"
        );
    }
}
