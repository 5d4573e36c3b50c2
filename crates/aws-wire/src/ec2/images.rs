//! DescribeImages: the machine images that EKS nodes boot, as their publishers name them.

use jiff::{
    Span,
    civil::{Date, date},
};
use mullion_api::ami::{AmiFamily, Os};
use mullion_cloud::image::NodeImage;

use super::{Call, launch::architecture};
use crate::{
    filter::{Filters, one},
    page::{self, Page},
    refusal::Refusal,
    xml::Xml,
};

/// DescribeImages.
pub(super) fn describe(call: &Call<'_>) -> Result<Vec<u8>, Refusal> {
    let root = call.root();
    let ids = root.list("ImageId");
    let owners = root.list("Owner");
    let filters = Filters::read(&root)?;
    let page = Page::read(&root, 1..=1000, 1000)?;
    page.not_with(!ids.is_empty(), "imageIdSet")?;
    root.accept(&["IncludeDeprecated", "IncludeDisabled"]);
    call.complete()?;
    let all = call.ec2().all_images();
    for id in &ids {
        if !all.iter().any(|own| own.id == **id) {
            super::launch::image(&all, id)?;
        }
    }
    let mut found = Vec::new();
    for image in all {
        let owner = owner(call, image.family);
        let tags = call.ec2().image_tags(&image.id);
        let is_named = ids.is_empty() || ids.contains(&image.id.as_str());
        let is_owned = owners.is_empty()
            || owners.contains(&owner.id)
            || owner.alias.is_some_and(|alias| owners.contains(&alias))
            || (owner.id == call.account_id() && owners.contains(&"self"));
        let find = |name: &str| match name {
            "image-id" => one(&image.id),
            "name" => one(&image.name),
            "owner-id" => one(owner.id),
            "owner-alias" => Some(owner.alias.map(str::to_owned).into_iter().collect()),
            "architecture" => one(architecture(image.arch)),
            "state" => one("available"),
            "image-type" => one("machine"),
            "is-public" => one(true),
            "root-device-type" => one("ebs"),
            "virtualization-type" => one("hvm"),
            "platform" => Some(platform(&image).map(str::to_owned).into_iter().collect()),
            "creation-date" => one(created(&image)),
            _ => None,
        };
        if filters.match_all(&tags, find)? && is_named && is_owned {
            found.push(image);
        }
    }
    let (found, token) = page.take(found, |own| own.id.clone());
    Ok(call.answer(|xml| {
        xml.list("imagesSet", &found, |xml, own| write(xml, call, own));
        page::next(xml, token);
    }))
}

/// Returns the publisher of an image.
struct Owner<'a> {
    id: &'a str,
    alias: Option<&'static str>,
}

/// Returns the accounts that publish images of a family.
fn owner<'a>(call: &Call<'a>, family: AmiFamily) -> Owner<'a> {
    let (id, alias) = match family {
        AmiFamily::AmazonLinux2 | AmiFamily::AmazonLinux2023 => ("602401143452", Some("amazon")),
        AmiFamily::Bottlerocket | AmiFamily::BottlerocketFips => ("092701018921", Some("amazon")),
        AmiFamily::Windows(..) => ("801119661308", Some("amazon")),
        AmiFamily::Custom => (call.account_id(), None),
        AmiFamily::Ubuntu2004
        | AmiFamily::UbuntuPro2004
        | AmiFamily::Ubuntu2204
        | AmiFamily::UbuntuPro2204
        | AmiFamily::Ubuntu2404
        | AmiFamily::UbuntuPro2404
        | AmiFamily::Ubuntu2604
        | AmiFamily::UbuntuPro2604 => ("099720109477", None),
    };
    Owner { id, alias }
}

fn platform(image: &NodeImage) -> Option<&'static str> {
    (image.os() == Os::Windows).then_some("windows")
}

/// Returns when an image was published: each release a month after the one before.
fn created(image: &NodeImage) -> String {
    const FIRST: Date = date(2025, 3, 17);
    let months = Span::new().try_months(image.release).unwrap_or_default();
    let day = FIRST.saturating_add(months);
    day.strftime("%Y-%m-%dT00:00:00.000Z").to_string()
}

fn write(xml: &mut Xml, call: &Call<'_>, own: &NodeImage) {
    let owner = owner(call, own.family);
    xml.leaf("imageId", &own.id);
    let place = owner.alias.unwrap_or(owner.id);
    xml.leaf("imageLocation", format!("{place}/{}", own.name));
    xml.leaf("imageState", "available");
    xml.leaf("imageOwnerId", owner.id);
    xml.leaf("creationDate", created(own));
    xml.leaf("isPublic", owner.id != call.account_id());
    xml.leaf("architecture", architecture(own.arch));
    xml.leaf("imageType", "machine");
    xml.maybe("platform", platform(own));
    let details = match own.os() {
        Os::Windows => ("Windows", "RunInstances:0002"),
        Os::Linux => ("Linux/UNIX", "RunInstances"),
    };
    xml.leaf("platformDetails", details.0);
    xml.leaf("usageOperation", details.1);
    xml.maybe("imageOwnerAlias", owner.alias);
    xml.leaf("name", &own.name);
    xml.leaf("description", own.os_image());
    xml.leaf("rootDeviceType", "ebs");
    let volumes = own.volumes();
    xml.maybe("rootDeviceName", volumes.first().map(|own| own.device));
    xml.list("blockDeviceMapping", &volumes, |xml, volume| {
        xml.leaf("deviceName", volume.device);
        xml.node("ebs", |xml| {
            xml.leaf("deleteOnTermination", true);
            xml.leaf("snapshotId", own.snapshot_id(volume.device));
            xml.leaf(
                "volumeSize",
                volume.snapshot_gib.unwrap_or(volume.default_gib),
            );
            xml.leaf("volumeType", "gp3");
        });
    });
    xml.leaf("virtualizationType", "hvm");
    xml.leaf("hypervisor", "xen");
    xml.leaf("enaSupport", true);
}
