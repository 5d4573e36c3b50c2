//! Checks that the root volumes of Windows nodes are as large as the snapshot of EKS's images: MUL088.

use mullion_api::ami::{AmiFamily, Os};
use mullion_engine::images::System;
use serde_json::Value;

use crate::check::{
    finding::Findings,
    fleet::{EKSCTL_GROUPS, family_of, system_of},
    path::Path,
    placement::list,
    problem::Problem,
    subject::{Object, amount},
};

/// The size of the snapshot of EKS's Windows images in GiB. EC2 makes no smaller volume of a snapshot.
const SNAPSHOT_GIB: u64 = 50;
const GIB: f64 = 1_073_741_824.0;
/// The root device of Windows images. A volume of another name is one more volume, which may have any size.
const ROOT: &str = "/dev/sda1";

/// Checks an object that says how large root volumes are.
pub(super) fn check(index: usize, object: &Object, found: &mut Findings) {
    let small = if object.is("ClusterConfig", "eksctl.io") {
        small_of_groups(&object.value)
    } else if object.is("EC2NodeClass", "karpenter.k8s.aws") {
        small_of_class(&object.value)
    } else {
        return;
    };
    for (at, size) in small {
        let least_gib = SNAPSHOT_GIB;
        found.add(
            "MUL088",
            index,
            at,
            Problem::SmallVolume { size, least_gib },
        );
    }
}

/// Returns the sizes of the Windows node groups of a ClusterConfig that are too small. The images of others may have smaller snapshots.
fn small_of_groups(config: &Value) -> Vec<(Path, String)> {
    let mut small = Vec::new();
    for (field, _) in EKSCTL_GROUPS {
        for (index, group) in list(&config[field]).enumerate() {
            let family = group["amiFamily"].as_str().unwrap_or_default();
            let family = family.parse::<AmiFamily>();
            let is_windows = family.is_ok_and(|family| family.os() == Os::Windows);
            let has_own_image = group["ami"].as_str().is_some_and(|ami| !ami.is_empty())
                || !group["launchTemplate"].is_null();
            let name = group["volumeName"].as_str();
            let size = group["volumeSize"].as_u64();
            // eksctl leaves the volume of size 0 to the image.
            let size = size.filter(|size| (1..SNAPSHOT_GIB).contains(size));
            if let Some(size) = size
                && is_windows
                && !has_own_image
                && name.is_none_or(|name| name == ROOT)
            {
                let at = Path::of(&[field]).index(index).key("volumeSize");
                small.push((at, format!("{size} GiB")));
            }
        }
    }
    small
}

/// Returns the sizes of an EC2NodeClass with EKS's Windows images that are too small.
fn small_of_class(class: &Value) -> Vec<(Path, String)> {
    let mut terms = list(&class["spec"]["amiSelectorTerms"]);
    let is_of_eks = terms.any(|term| term["alias"].is_string());
    let is_windows = family_of(class).is_some_and(|family| system_of(family) == System::Windows);
    if !is_of_eks || !is_windows {
        return Vec::new();
    }
    let at = Path::of(&["spec", "blockDeviceMappings"]);
    let mappings = list(&class["spec"]["blockDeviceMappings"]).enumerate();
    let small = mappings.filter_map(|(index, mapping)| {
        let ebs = &mapping["ebs"];
        let is_root = mapping["deviceName"] == ROOT && ebs["snapshotID"].is_null();
        let bytes = amount(&ebs["volumeSize"]).filter(|_| is_root)?;
        // Karpenter asks for whole GiB, rounded up.
        let gib = (bytes / GIB).ceil();
        (gib < SNAPSHOT_GIB as f64).then(|| {
            let at = at.index(index).keys(&["ebs", "volumeSize"]);
            (at, format!("{gib} GiB"))
        })
    });
    small.collect()
}
