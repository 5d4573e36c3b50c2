//! The public SSM parameters that hold the ids of images, as the makers of the images publish them.

use mullion_api::ami::{AmiFamily, WindowsEdition};

use crate::{
    catalogue::Arch,
    image::{ImageVariant, NodeImage, bottlerocket_suffixes, variant_word},
};

impl NodeImage {
    /// Returns the names of the public SSM parameters that hold the image's id. The newest image of its family has one that
    /// names no release; EKS publishes only that one for Windows, and Canonical for Ubuntu.
    pub fn parameters(&self, is_newest: bool) -> Vec<String> {
        let version = self.version;
        let machine = match self.arch {
            Arch::Amd64 => "x86_64",
            Arch::Arm64 => "arm64",
        };
        let eks = format!("/aws/service/eks/optimized-ami/{version}");
        let both = |path: String, newest: &str, own: &str| {
            let newest = is_newest.then(|| format!("{path}/{newest}/image_id"));
            newest
                .into_iter()
                .chain([format!("{path}/{own}/image_id")])
                .collect()
        };
        match self.family {
            AmiFamily::AmazonLinux2 => {
                let suffix = match (self.arch, self.variant) {
                    (Arch::Amd64, ImageVariant::Nvidia | ImageVariant::Neuron) => "-gpu",
                    (Arch::Amd64, _) => "",
                    (Arch::Arm64, _) => "-arm64",
                };
                both(
                    format!("{eks}/amazon-linux-2{suffix}"),
                    "recommended",
                    &self.name,
                )
            }
            AmiFamily::AmazonLinux2023 => both(
                format!(
                    "{eks}/amazon-linux-2023/{machine}/{}",
                    variant_word(self.variant)
                ),
                "recommended",
                &self.name,
            ),
            AmiFamily::Bottlerocket | AmiFamily::BottlerocketFips => {
                let own = self.name.rsplit_once("-v").map_or("", |(_, own)| own);
                both(
                    format!(
                        "/aws/service/bottlerocket/aws-k8s-{version}{}/{machine}",
                        bottlerocket_suffixes(self.family, self.variant)
                    ),
                    "latest",
                    own,
                )
            }
            AmiFamily::Windows(release, edition) if is_newest => {
                let edition = match edition {
                    WindowsEdition::Core => "Core",
                    WindowsEdition::Full => "Full",
                };
                let year = release.year();
                vec![format!(
                    "/aws/service/ami-windows-latest/Windows_Server-{year}-English-{edition}-EKS_Optimized-{version}/image_id"
                )]
            }
            AmiFamily::Ubuntu2004 if is_newest => vec![canonical(self, "20.04", "ebs-gp2")],
            AmiFamily::Ubuntu2204 if is_newest => vec![canonical(self, "22.04", "ebs-gp2")],
            AmiFamily::Ubuntu2404 if is_newest => vec![canonical(self, "24.04", "ebs-gp3")],
            AmiFamily::Ubuntu2604 if is_newest => vec![canonical(self, "26.04", "ebs-gp3")],
            _ => Vec::new(),
        }
    }
}

/// Returns the parameter of an image of Canonical's.
fn canonical(image: &NodeImage, release: &str, kind: &str) -> String {
    let (version, arch) = (image.version, image.arch.as_str());
    format!(
        "/aws/service/canonical/ubuntu/eks/{release}/{version}/stable/current/{arch}/hvm/{kind}/ami-id"
    )
}
