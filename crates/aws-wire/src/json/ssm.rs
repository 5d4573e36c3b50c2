//! SSM: the public parameters that name the newest images.

use mullion_api::ami::{AmiFamily, WindowsEdition};
use mullion_cloud::{catalogue::Arch, image::NodeImage};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{admit, read, unknown};
use crate::{Endpoint, refusal::Refusal};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct GetParameter {
    name: String,
    #[serde(default, rename = "WithDecryption")]
    _with_decryption: bool,
}

pub(super) fn act(endpoint: &Endpoint, action: &str, body: &[u8]) -> Result<Value, Refusal> {
    admit(endpoint, "ssm", action)?;
    if action != "GetParameter" {
        return Err(unknown(&format!("ssm:{action}")));
    }
    let request: GetParameter = read(body)?;
    let name = request.name.as_str();
    // Releases of an image follow each other, the newest first.
    let images = endpoint.ec2().all_images();
    let line = |image: &NodeImage| (image.family, image.version, image.arch);
    let mut last = None;
    let found = images.iter().find(|image| {
        let is_newest = last.replace(line(image)) != Some(line(image));
        parameters(image, is_newest).iter().any(|own| own == name)
    });
    let image = found
        .ok_or_else(|| Refusal::new("ParameterNotFound", format!("Parameter {name} not found.")))?;
    let region = &endpoint.ec2().config().region;
    Ok(json!({
        "Parameter": {
            "ARN": format!("arn:aws:ssm:{region}::parameter{name}"),
            "DataType": "text",
            "LastModifiedDate": 1_742_169_600 + 2_592_000 * i64::from(image.release),
            "Name": name,
            "Type": "String",
            "Value": image.id,
            "Version": image.release + 1,
        }
    }))
}

/// Returns the names of the parameters that have an image's id as their value.
fn parameters(image: &NodeImage, is_newest: bool) -> Vec<String> {
    let version = image.version;
    let machine = match image.arch {
        Arch::Amd64 => "x86_64",
        Arch::Arm64 => "arm64",
    };
    let eks = format!("/aws/service/eks/optimized-ami/{version}");
    // The newest one has a name of its own beside that of its version.
    let both = |path: String, newest: &str, own: &str| {
        let newest = is_newest.then(|| format!("{path}/{newest}/image_id"));
        newest
            .into_iter()
            .chain([format!("{path}/{own}/image_id")])
            .collect()
    };
    match image.family {
        AmiFamily::AmazonLinux2 => {
            let suffix = match image.arch {
                Arch::Amd64 => "",
                Arch::Arm64 => "-arm64",
            };
            both(
                format!("{eks}/amazon-linux-2{suffix}"),
                "recommended",
                &image.name,
            )
        }
        AmiFamily::AmazonLinux2023 => both(
            format!("{eks}/amazon-linux-2023/{machine}/standard"),
            "recommended",
            &image.name,
        ),
        AmiFamily::Bottlerocket => {
            let own = image.name.rsplit_once("-v").map_or("", |(_, own)| own);
            both(
                format!("/aws/service/bottlerocket/aws-k8s-{version}/{machine}"),
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
        AmiFamily::Ubuntu2004 => canonical(image, "20.04", is_newest),
        AmiFamily::Ubuntu2204 => canonical(image, "22.04", is_newest),
        AmiFamily::Ubuntu2404 => canonical(image, "24.04", is_newest),
        AmiFamily::Windows(..)
        | AmiFamily::UbuntuPro2004
        | AmiFamily::UbuntuPro2204
        | AmiFamily::UbuntuPro2404
        | AmiFamily::Custom => Vec::new(),
    }
}

/// Returns the parameter of an image of Canonical's.
fn canonical(image: &NodeImage, release: &str, is_newest: bool) -> Vec<String> {
    let (version, arch) = (image.version, image.arch.as_str());
    let kind = if release == "24.04" {
        "ebs-gp3"
    } else {
        "ebs-gp2"
    };
    let name = format!(
        "/aws/service/canonical/ubuntu/eks/{release}/{version}/stable/current/{arch}/hvm/{kind}/ami-id"
    );
    is_newest.then_some(name).into_iter().collect()
}
