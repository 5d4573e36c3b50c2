//! Validates the volume mounts and block devices of a container.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use mullion_kube_text::field::{Errors, Path};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{Scope, paths, volumes::find};

const PROPAGATIONS: [&str; 3] = ["Bidirectional", "HostToContainer", "None"];
const RECURSIVE_READ_ONLY: [&str; 3] = ["Disabled", "Enabled", "IfPossible"];

/// Validates `volumeMounts`. As in kube-apiserver, some errors name the list instead of the item.
pub(super) fn validate_mounts(
    container: &Value,
    scope: &Scope<'_>,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let (mounts, devices) = (
        container.items("volumeMounts"),
        container.items("volumeDevices"),
    );
    let device_names: HashSet<&str> = devices.iter().map(|device| device.text("name")).collect();
    let device_paths = devices.iter().map(|device| device.text("devicePath"));
    let device_paths: HashSet<&str> = device_paths.collect();
    let mut targets = HashSet::new();
    for (index, mount) in mounts.iter().enumerate() {
        let at = path.index(index);
        let (name, target) = (mount.text("name"), mount.text("mountPath"));
        if name.is_empty() {
            errors.required(&at.child("name"), "");
        }
        let volume = find(scope, name);
        if volume.is_none() {
            errors.not_found(&at.child("name"), name);
        }
        if target.is_empty() {
            errors.required(&at.child("mountPath"), "");
        }
        if !targets.insert(target) {
            errors.invalid(&at.child("mountPath"), target, "must be unique");
        }
        // A container uses a volume as a file system or as a device, not as both.
        if device_names.contains(name) {
            errors.invalid(
                &at.child("name"),
                name,
                "must not already exist in volumeDevices",
            );
        }
        if device_paths.contains(target) {
            errors.invalid(
                &at.child("mountPath"),
                target,
                "must not already exist as a path in volumeDevices",
            );
        }
        sub_paths(mount, path, &at, errors);
        propagation(mount, container, path, errors);
        recursive_read_only(mount, path, errors);
    }
}

fn sub_paths(mount: &Value, list: &Path<'_>, at: &Path<'_>, errors: &mut Errors) {
    let (sub_path, expression) = (mount.text("subPath"), mount.text("subPathExpr"));
    if !sub_path.is_empty() {
        paths::local_descending(errors, &list.child("subPath"), sub_path);
    }
    if !expression.is_empty() {
        if !sub_path.is_empty() {
            errors.invalid(
                &at.child("subPathExpr"),
                expression,
                "subPathExpr and subPath are mutually exclusive",
            );
        }
        paths::local_descending(errors, &list.child("subPathExpr"), expression);
    }
}

fn propagation(mount: &Value, container: &Value, list: &Path<'_>, errors: &mut Errors) {
    if !mount.has("mountPropagation") {
        return;
    }
    let mode = mount.text("mountPropagation");
    let at = list.child("mountPropagation");
    if !PROPAGATIONS.contains(&mode) {
        errors.not_supported(&at, mode, &PROPAGATIONS);
    }
    let privileged = container
        .get("securityContext")
        .is_some_and(|context| context.flag("privileged"));
    // Such a container's own mounts appear on the node.
    if mode == "Bidirectional" && !privileged {
        errors.forbidden(
            &at,
            "Bidirectional mount propagation is available only to privileged containers",
        );
    }
}

fn recursive_read_only(mount: &Value, list: &Path<'_>, errors: &mut Errors) {
    if !mount.has("recursiveReadOnly") {
        return;
    }
    let at = list.child("recursiveReadOnly");
    match mount.text("recursiveReadOnly") {
        "Disabled" => {}
        "Enabled" | "IfPossible" => {
            if !mount.flag("readOnly") {
                errors.forbidden(&at, "may only be specified when readOnly is true");
            }
            if mount.has("mountPropagation") && mount.text("mountPropagation") != "None" {
                errors.forbidden(
                    &at,
                    "may only be specified when mountPropagation is None or not specified",
                );
            }
        }
        mode => errors.not_supported(&at, mode, &RECURSIVE_READ_ONLY),
    }
}

/// Validates `volumeDevices`, which must be volumes from claims.
pub(super) fn validate_devices(
    container: &Value,
    scope: &Scope<'_>,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let (mounts, devices) = (
        container.items("volumeMounts"),
        container.items("volumeDevices"),
    );
    // If a volume is mounted twice, kube-apiserver compares only the last path.
    let places: BTreeMap<&str, &str> = mounts
        .iter()
        .map(|mount| (mount.text("name"), mount.text("mountPath")))
        .collect();
    let taken: BTreeSet<&str> = places.values().copied().collect();
    let (mut seen_names, mut seen_paths) = (HashSet::new(), HashSet::new());
    for (index, device) in devices.iter().enumerate() {
        let at = path.index(index);
        let (name, target) = (device.text("name"), device.text("devicePath"));
        let (is_new_name, is_new_path) = (seen_names.insert(name), seen_paths.insert(target));
        if name.is_empty() {
            errors.required(&at.child("name"), "");
        } else if !is_new_name {
            errors.invalid(&at.child("name"), name, "must be unique");
        }
        match find(scope, name) {
            None => errors.not_found(&at.child("name"), name),
            Some(volume) if !volume.has("persistentVolumeClaim") && !volume.has("ephemeral") => {
                let detail = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                errors.invalid(&at.child("name"), name, detail);
            }
            Some(_) => {}
        }
        if target.is_empty() {
            errors.required(&at.child("devicePath"), "");
        }
        if !is_new_path && !paths::has_backsteps(target) {
            errors.invalid(&at.child("devicePath"), target, "must be unique");
        }
        if paths::has_backsteps(target) {
            errors.invalid(
                &at.child("devicePath"),
                target,
                "can not contain backsteps ('..')",
            );
        }
        if places.contains_key(name) {
            errors.invalid(
                &at.child("name"),
                name,
                "must not already exist in volumeMounts",
            );
        }
        if taken.contains(target) {
            errors.invalid(
                &at.child("devicePath"),
                target,
                "must not already exist as a path in volumeMounts",
            );
        }
    }
}
