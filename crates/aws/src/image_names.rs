//! The SSM parameters with the ids of a family's images, and the family of an image by its name.

use mullion_api::{
    ami::{AmiFamily, WindowsEdition, WindowsRelease},
    eksctl::KubernetesVersion,
};
use mullion_cloud::image::{ImageVariant, LATEST};

/// An SSM parameter with the id of an image, and the hardware that the image is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The name of the parameter.
    pub name: String,
    /// The hardware that the image has drivers for.
    pub variant: ImageVariant,
}

/// Returns the parameters with the images of a family's release (`latest`, or the release of an alias). The list is empty if AWS publishes
/// none.
pub fn parameters(family: AmiFamily, version: KubernetesVersion, release: &str) -> Vec<Parameter> {
    let own = |name: String, variant| Parameter { name, variant };
    let is_latest = release == LATEST;
    let named = |name: String| {
        if is_latest {
            "recommended".to_owned()
        } else {
            name
        }
    };
    use ImageVariant::{Any, Neuron, Nvidia, Standard};
    match family {
        AmiFamily::AmazonLinux2023 => [
            ("x86_64", "standard", Standard),
            ("x86_64", "nvidia", Nvidia),
            ("x86_64", "neuron", Neuron),
            ("arm64", "standard", Standard),
            ("arm64", "nvidia", Nvidia),
        ]
        .into_iter()
        .map(|(arch, word, variant)| {
            let name = named(format!(
                "amazon-eks-node-al2023-{arch}-{word}-{version}-{release}"
            ));
            own(
                format!(
                    "/aws/service/eks/optimized-ami/{version}/amazon-linux-2023/{arch}/{word}/{name}/image_id"
                ),
                variant,
            )
        })
        .collect(),
        AmiFamily::AmazonLinux2 => [
            ("amazon-linux-2", "amazon-eks-node", Standard),
            ("amazon-linux-2-arm64", "amazon-eks-arm64-node", Standard),
            ("amazon-linux-2-gpu", "amazon-eks-gpu-node", Nvidia),
            // One image has the drivers for both kinds of accelerators.
            ("amazon-linux-2-gpu", "amazon-eks-gpu-node", Neuron),
        ]
        .into_iter()
        .map(|(folder, prefix, variant)| {
            let name = named(format!("{prefix}-{version}-{release}"));
            own(
                format!("/aws/service/eks/optimized-ami/{version}/{folder}/{name}/image_id"),
                variant,
            )
        })
        .collect(),
        AmiFamily::Bottlerocket => {
            // Releases are written with a v everywhere but here.
            let release = release.trim_start_matches('v');
            [
                ("", "x86_64", Standard),
                ("", "x86_64", Neuron),
                ("", "arm64", Standard),
                ("-nvidia", "x86_64", Nvidia),
                ("-nvidia", "arm64", Nvidia),
            ]
            .into_iter()
            .map(|(suffix, arch, variant)| {
                own(
                    format!(
                        "/aws/service/bottlerocket/aws-k8s-{version}{suffix}/{arch}/{release}/image_id"
                    ),
                    variant,
                )
            })
            .collect()
        }
        AmiFamily::Windows(windows, edition) => {
            let edition = edition_name(edition);
            let year = windows.year();
            vec![own(
                format!(
                    "/aws/service/ami-windows-latest/Windows_Server-{year}-English-{edition}-EKS_Optimized-{version}/image_id"
                ),
                Any,
            )]
        }
        _ => Vec::new(),
    }
}

fn edition_name(edition: WindowsEdition) -> &'static str {
    match edition {
        WindowsEdition::Core => "Core",
        WindowsEdition::Full => "Full",
    }
}

/// Returns the family and the Kubernetes version of an image by its name, if EKS, Bottlerocket or Canonical published it.
pub fn family_of(name: &str) -> Option<(AmiFamily, KubernetesVersion)> {
    // Before AL2, whose prefix is the beginning of this one.
    let family = if name.starts_with("amazon-eks-node-al2023-") {
        AmiFamily::AmazonLinux2023
    } else if [
        "amazon-eks-node-",
        "amazon-eks-arm64-node-",
        "amazon-eks-gpu-node-",
    ]
    .iter()
    .any(|prefix| name.starts_with(prefix))
    {
        AmiFamily::AmazonLinux2
    } else if name.starts_with("bottlerocket-aws-k8s-") {
        AmiFamily::Bottlerocket
    } else if let Some(rest) = name.strip_prefix("Windows_Server-") {
        windows_family(rest)?
    } else if name.starts_with("ubuntu-eks/") {
        [
            ("20.04", AmiFamily::Ubuntu2004),
            ("22.04", AmiFamily::Ubuntu2204),
            ("24.04", AmiFamily::Ubuntu2404),
            ("26.04", AmiFamily::Ubuntu2604),
        ]
        .into_iter()
        .find_map(|(release, family)| name.contains(release).then_some(family))?
    } else {
        return None;
    };
    Some((family, version_in(name)?))
}

fn windows_family(rest: &str) -> Option<AmiFamily> {
    let mut words = rest.split('-');
    let release = match words.next()? {
        "2019" => WindowsRelease::V2019,
        "2022" => WindowsRelease::V2022,
        "2025" => WindowsRelease::V2025,
        _ => return None,
    };
    let edition = match words.nth(1)? {
        "Core" => WindowsEdition::Core,
        "Full" => WindowsEdition::Full,
        _ => return None,
    };
    Some(AmiFamily::Windows(release, edition))
}

/// Returns the version in the first part `1.N` of a name.
fn version_in(name: &str) -> Option<KubernetesVersion> {
    name.split(['-', '_', '/']).find_map(|word| {
        let minor = word.strip_prefix("1.")?.parse().ok()?;
        KubernetesVersion::from_minor(minor)
    })
}

#[cfg(test)]
mod tests {
    use mullion_cloud::{catalogue::Arch, image::NodeImage};

    use super::*;

    const FAMILIES: [AmiFamily; 5] = [
        AmiFamily::AmazonLinux2,
        AmiFamily::AmazonLinux2023,
        AmiFamily::Bottlerocket,
        AmiFamily::Windows(WindowsRelease::V2022, WindowsEdition::Core),
        AmiFamily::Windows(WindowsRelease::V2019, WindowsEdition::Full),
    ];

    #[test]
    fn images_are_known_by_their_names() {
        let version = KubernetesVersion::from_minor(31).expect("known");
        for family in FAMILIES {
            let image = NodeImage::new(family, version, Arch::Amd64);
            assert_eq!(
                family_of(&image.name),
                Some((family, version)),
                "{}",
                image.name
            );
        }
        let gpu = "amazon-eks-gpu-node-1.31-v20250317";
        assert_eq!(family_of(gpu), Some((AmiFamily::AmazonLinux2, version)));
        let ubuntu =
            "ubuntu-eks/k8s_1.31/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-20250305";
        assert_eq!(family_of(ubuntu), Some((AmiFamily::Ubuntu2404, version)));
        assert_eq!(family_of("my-golden-image"), None);
    }

    #[test]
    fn parameters_are_those_that_aws_publishes() {
        let version = KubernetesVersion::from_minor(31).expect("known");
        let first = |family, release: &str| {
            let all = parameters(family, version, release);
            all.first().map(|own| own.name.clone()).unwrap_or_default()
        };
        let names = [
            first(AmiFamily::AmazonLinux2023, LATEST),
            first(AmiFamily::AmazonLinux2023, "v20250317"),
            first(AmiFamily::AmazonLinux2, LATEST),
            first(AmiFamily::Bottlerocket, LATEST),
            first(AmiFamily::Bottlerocket, "v1.40.0"),
            first(FAMILIES[3], LATEST),
            first(AmiFamily::Custom, LATEST),
        ];
        assert_eq!(
            names.join("\n"),
            "/aws/service/eks/optimized-ami/1.31/amazon-linux-2023/x86_64/standard/recommended/image_id\n\
             /aws/service/eks/optimized-ami/1.31/amazon-linux-2023/x86_64/standard/amazon-eks-node-al2023-x86_64-standard-1.31-v20250317/image_id\n\
             /aws/service/eks/optimized-ami/1.31/amazon-linux-2/recommended/image_id\n\
             /aws/service/bottlerocket/aws-k8s-1.31/x86_64/latest/image_id\n\
             /aws/service/bottlerocket/aws-k8s-1.31/x86_64/1.40.0/image_id\n\
             /aws/service/ami-windows-latest/Windows_Server-2022-English-Core-EKS_Optimized-1.31/image_id\n"
        );
    }
}
