//! Image families: the names that eksctl, Karpenter and EKS give to the same machine images.
//!
//! Invariant: a family determines the operating system, and for Windows the build. The cloud crate knows what else nodes of a family report
//! (kernel, runtime).

use std::{fmt, str::FromStr};

use crate::labels;
use serde::{Deserialize, Serialize};

/// Operating system of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Os {
    /// Linux.
    Linux,
    /// Windows.
    Windows,
}

impl Os {
    /// Returns the value of the label `kubernetes.io/os`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Linux => labels::OS_LINUX,
            Self::Windows => labels::OS_WINDOWS,
        }
    }
}

impl fmt::Display for Os {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Release of Windows Server that nodes run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum WindowsRelease {
    /// Windows Server 2019, LTSC.
    V2019,
    /// Windows Server 2022, LTSC.
    V2022,
    /// Windows Server 2025, LTSC.
    V2025,
}

impl WindowsRelease {
    /// Returns the value of the label `node.kubernetes.io/windows-build`.
    pub fn build(self) -> &'static str {
        match self {
            Self::V2019 => "10.0.17763",
            Self::V2022 => "10.0.20348",
            Self::V2025 => "10.0.26100",
        }
    }

    /// Returns the year in its name.
    pub fn year(self) -> &'static str {
        match self {
            Self::V2019 => "2019",
            Self::V2022 => "2022",
            Self::V2025 => "2025",
        }
    }
}

/// Installation option of Windows Server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum WindowsEdition {
    /// Without a desktop.
    Core,
    /// With a desktop.
    Full,
}

/// Family of machine images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum AmiFamily {
    /// Amazon Linux 2.
    AmazonLinux2,
    /// Amazon Linux 2023.
    AmazonLinux2023,
    /// Bottlerocket.
    Bottlerocket,
    /// Bottlerocket with the cryptographic modules that FIPS asks for.
    BottlerocketFips,
    /// Ubuntu 20.04.
    Ubuntu2004,
    /// Ubuntu Pro 20.04.
    UbuntuPro2004,
    /// Ubuntu 22.04.
    Ubuntu2204,
    /// Ubuntu Pro 22.04.
    UbuntuPro2204,
    /// Ubuntu 24.04.
    Ubuntu2404,
    /// Ubuntu Pro 24.04.
    UbuntuPro2404,
    /// Ubuntu 26.04.
    Ubuntu2604,
    /// Ubuntu Pro 26.04.
    UbuntuPro2604,
    /// Windows Server.
    Windows(WindowsRelease, WindowsEdition),
    /// An image of the user's own, taken to be Linux.
    Custom,
}

use WindowsEdition::{Core, Full};
use WindowsRelease::{V2019, V2022, V2025};

/// eksctl's names (eksctl 0.231: `SupportedAMIFamilies`), in the order in which messages list them.
const EKSCTL: &[(&str, AmiFamily)] = &[
    ("AmazonLinux2", AmiFamily::AmazonLinux2),
    ("AmazonLinux2023", AmiFamily::AmazonLinux2023),
    ("Bottlerocket", AmiFamily::Bottlerocket),
    ("BottlerocketFips", AmiFamily::BottlerocketFips),
    ("Ubuntu2004", AmiFamily::Ubuntu2004),
    ("UbuntuPro2004", AmiFamily::UbuntuPro2004),
    ("Ubuntu2204", AmiFamily::Ubuntu2204),
    ("UbuntuPro2204", AmiFamily::UbuntuPro2204),
    ("Ubuntu2404", AmiFamily::Ubuntu2404),
    ("UbuntuPro2404", AmiFamily::UbuntuPro2404),
    ("Ubuntu2604", AmiFamily::Ubuntu2604),
    ("UbuntuPro2604", AmiFamily::UbuntuPro2604),
    (
        "WindowsServer2019CoreContainer",
        AmiFamily::Windows(V2019, Core),
    ),
    (
        "WindowsServer2019FullContainer",
        AmiFamily::Windows(V2019, Full),
    ),
    (
        "WindowsServer2022CoreContainer",
        AmiFamily::Windows(V2022, Core),
    ),
    (
        "WindowsServer2022FullContainer",
        AmiFamily::Windows(V2022, Full),
    ),
    (
        "WindowsServer2025CoreContainer",
        AmiFamily::Windows(V2025, Core),
    ),
    (
        "WindowsServer2025FullContainer",
        AmiFamily::Windows(V2025, Full),
    ),
];

/// Karpenter's names (`spec.amiFamily`); in lower case they are the families in aliases.
const KARPENTER: &[(&str, AmiFamily)] = &[
    ("AL2", AmiFamily::AmazonLinux2),
    ("AL2023", AmiFamily::AmazonLinux2023),
    ("Bottlerocket", AmiFamily::Bottlerocket),
    ("Ubuntu", AmiFamily::Ubuntu2204),
    ("Windows2019", AmiFamily::Windows(V2019, Core)),
    ("Windows2022", AmiFamily::Windows(V2022, Core)),
    ("Windows2025", AmiFamily::Windows(V2025, Core)),
    ("Custom", AmiFamily::Custom),
];

/// EKS managed node groups' names (`amiType`).
const AMI_TYPES: &[(&str, AmiFamily)] = &[
    ("AL2_x86_64", AmiFamily::AmazonLinux2),
    ("AL2_ARM_64", AmiFamily::AmazonLinux2),
    ("AL2023_x86_64_STANDARD", AmiFamily::AmazonLinux2023),
    ("AL2023_ARM_64_STANDARD", AmiFamily::AmazonLinux2023),
    ("BOTTLEROCKET_x86_64", AmiFamily::Bottlerocket),
    ("BOTTLEROCKET_ARM_64", AmiFamily::Bottlerocket),
    ("WINDOWS_CORE_2019_x86_64", AmiFamily::Windows(V2019, Core)),
    ("WINDOWS_FULL_2019_x86_64", AmiFamily::Windows(V2019, Full)),
    ("WINDOWS_CORE_2022_x86_64", AmiFamily::Windows(V2022, Core)),
    ("WINDOWS_FULL_2022_x86_64", AmiFamily::Windows(V2022, Full)),
    ("WINDOWS_CORE_2025_x86_64", AmiFamily::Windows(V2025, Core)),
    ("WINDOWS_FULL_2025_x86_64", AmiFamily::Windows(V2025, Full)),
    ("CUSTOM", AmiFamily::Custom),
];

fn find(table: &[(&str, AmiFamily)], name: &str) -> Option<AmiFamily> {
    let row = table.iter().find(|(known, _)| *known == name)?;
    Some(row.1)
}

impl AmiFamily {
    /// Returns the family for Karpenter's `spec.amiFamily`.
    pub fn from_karpenter(name: &str) -> Option<Self> {
        find(KARPENTER, name)
    }

    /// Returns the family for the first half of an alias such as `windows2022@latest`.
    pub fn from_alias(alias: &str) -> Option<Self> {
        let (family, _) = alias.split_once('@')?;
        let row = KARPENTER
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(family))?;
        Some(row.1)
    }

    /// Returns Karpenter's names of the families that an alias can name, in lower case.
    pub fn alias_families() -> impl Iterator<Item = (&'static str, Self)> {
        let all = KARPENTER.iter().copied();
        all.filter(|(_, family)| !matches!(family, Self::Custom | Self::Ubuntu2204))
    }

    /// Returns the family for a managed node group's `amiType`.
    pub fn from_ami_type(name: &str) -> Option<Self> {
        find(AMI_TYPES, name)
    }

    /// Returns eksctl's names of all families.
    pub fn eksctl_names() -> impl Iterator<Item = &'static str> {
        EKSCTL.iter().map(|(name, _)| *name)
    }

    /// Returns the operating system.
    pub fn os(self) -> Os {
        match self {
            Self::Windows(..) => Os::Windows,
            _ => Os::Linux,
        }
    }

    /// Returns whether the images are Bottlerocket's.
    pub fn is_bottlerocket(self) -> bool {
        matches!(self, Self::Bottlerocket | Self::BottlerocketFips)
    }

    /// Returns the Windows release, on Windows.
    pub fn windows_release(self) -> Option<WindowsRelease> {
        match self {
            Self::Windows(release, _) => Some(release),
            _ => None,
        }
    }

    /// Returns eksctl's name, or Karpenter's `Custom` if eksctl has none.
    pub fn as_str(self) -> &'static str {
        EKSCTL
            .iter()
            .find(|(_, family)| *family == self)
            .map_or("Custom", |(name, _)| name)
    }
}

impl fmt::Display for AmiFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Families that eksctl names only to refuse them, because Microsoft has ended their support.
const ENDED: [&str; 2] = [
    "WindowsServer2004CoreContainer",
    "WindowsServer20H2CoreContainer",
];

/// Why eksctl refuses the name of a family.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FamilyError {
    /// The support of the family has ended.
    #[error("AMI Family {name} is deprecated")]
    Ended {
        /// The name.
        name: String,
    },
    /// eksctl has no family of this name.
    #[error("{name:?} is not one of {all}", all = all_names())]
    Unknown {
        /// The name.
        name: String,
    },
}

fn all_names() -> String {
    let names: Vec<_> = AmiFamily::eksctl_names().collect();
    names.join(", ")
}

impl FamilyError {
    /// Returns the family that may have been meant: one whose name begins like this one, or the usual one for Windows.
    pub fn meant(&self) -> Option<AmiFamily> {
        let (Self::Ended { name } | Self::Unknown { name }) = self;
        let name = name.to_ascii_lowercase();
        let begins =
            |known: &str| !name.is_empty() && known.to_ascii_lowercase().starts_with(&name);
        let longer = EKSCTL.iter().find(|(known, _)| begins(known));
        let is_windows = name.starts_with("windows");
        let edition = if name.contains("full") { Full } else { Core };
        let usual = is_windows.then_some(AmiFamily::Windows(V2022, edition));
        longer.map(|row| row.1).or(usual)
    }
}

impl FromStr for AmiFamily {
    type Err = FamilyError;

    /// Parses eksctl's name. As in eksctl, letters may be small or large.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let mut known = EKSCTL.iter();
        let row = known.find(|(known, _)| known.eq_ignore_ascii_case(name));
        row.map(|row| row.1).ok_or_else(|| {
            let name = name.to_owned();
            if ENDED.contains(&name.as_str()) {
                FamilyError::Ended { name }
            } else {
                FamilyError::Unknown { name }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_vocabularies_name_the_same_image() {
        let family = AmiFamily::Windows(V2022, Core);
        assert_eq!("WindowsServer2022CoreContainer".parse(), Ok(family));
        assert_eq!("windowsserver2022corecontainer".parse(), Ok(family));
        assert_eq!(AmiFamily::from_karpenter("Windows2022"), Some(family));
        assert_eq!(AmiFamily::from_alias("windows2022@latest"), Some(family));
        assert_eq!(
            AmiFamily::from_ami_type("WINDOWS_CORE_2022_x86_64"),
            Some(family)
        );
    }

    #[test]
    fn a_name_that_eksctl_refuses_leads_to_the_family_that_may_be_meant() {
        let meant = |name: &str| name.parse::<AmiFamily>().unwrap_err().meant();
        let windows = |release, edition| Some(AmiFamily::Windows(release, edition));
        assert_eq!(meant("WindowsServer2019"), windows(V2019, Core));
        assert_eq!(meant("windowsserver2025full"), windows(V2025, Full));
        assert_eq!(
            meant("WindowsServer2004FullContainer"),
            windows(V2022, Full)
        );
        assert_eq!(
            meant("WindowsServer20H2CoreContainer"),
            windows(V2022, Core)
        );
        assert_eq!(meant("Ubuntu"), Some(AmiFamily::Ubuntu2004));
        assert_eq!(meant(""), None);
        assert_eq!(meant("Flatcar"), None);
    }

    #[test]
    fn the_families_are_those_that_eksctl_supports() {
        let mut known: Vec<_> = AmiFamily::eksctl_names().collect();
        known.sort_unstable();
        assert_eq!(
            known,
            [
                "AmazonLinux2",
                "AmazonLinux2023",
                "Bottlerocket",
                "BottlerocketFips",
                "Ubuntu2004",
                "Ubuntu2204",
                "Ubuntu2404",
                "Ubuntu2604",
                "UbuntuPro2004",
                "UbuntuPro2204",
                "UbuntuPro2404",
                "UbuntuPro2604",
                "WindowsServer2019CoreContainer",
                "WindowsServer2019FullContainer",
                "WindowsServer2022CoreContainer",
                "WindowsServer2022FullContainer",
                "WindowsServer2025CoreContainer",
                "WindowsServer2025FullContainer",
            ]
        );
    }

    #[test]
    fn every_eksctl_name_is_read_back_as_itself() {
        for name in AmiFamily::eksctl_names() {
            assert_eq!(name.parse::<AmiFamily>().unwrap().as_str(), name);
        }
    }
}
