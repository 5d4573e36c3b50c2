//! storage.k8s.io/v1 VolumeAttachment: the request to attach a volume to a node, and its result. The spec never changes.

use jiff::Timestamp;
use mullion_kube_text::{
    field::{ErrorType, Errors, Path},
    names, validation,
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{
    Check, Column, Kind, csi, persistentvolumes,
    podspec::internal,
    print::{AGE, NAME, age, column, name, typed},
};
use crate::{
    Printing,
    fields::{
        self, Anything, AtLeast, Code, Field, Fields, Forbidden, Format, Text, always, filled,
        present, required, set,
    },
    request::Ctx,
};

/// The largest size of the attachment metadata, in bytes; kube-apiserver's message about a long error message names it too.
const MAX_METADATA: usize = 256 * 1024;
const MAX_ERROR_MESSAGE: usize = 1024;
const ONE_SOURCE: &str = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
const NOT_INLINE: &str = "may not be specified in the context of inline volumes";

const SPEC: &[Field] = &[
    required("attacher", Text(csi::driver_name)),
    always("source", Code(source)),
    always("nodeName", Format(names::dns_subdomain)),
];
const SOURCE: &[Field] = &[set("persistentVolumeName", Format(names::dns_subdomain))];
const INLINE: &[Field] = &[
    set("claimRef", Forbidden(NOT_INLINE)),
    filled("capacity", Forbidden(NOT_INLINE)),
    present("csi", Anything).because("has to be specified in the context of inline volumes"),
];
const STATUS: &[Field] = &[
    always("attachmentMetadata", Code(attachment_metadata)),
    set("attachError", Fields(ERROR)),
    set("detachError", Fields(ERROR)),
];
const ERROR: &[Field] = &[
    always("message", Text(message)),
    set(
        "errorCode",
        AtLeast(0, "must be between 0 and 2147483647, inclusive"),
    ),
];

/// storage.k8s.io/v1 VolumeAttachment.
pub(crate) struct VolumeAttachment;

impl Kind for VolumeAttachment {
    fn status_checks(&self) -> &'static [Check] {
        &[Check::Metadata, Check::Change]
    }

    fn update_checks(&self, _: &str) -> &'static [Check] {
        Check::WHOLE
    }

    fn default(&self, object: &mut Value) {
        let inline = object.pointer_mut("/spec/source/inlineVolumeSpec");
        if let Some(spec) = inline.and_then(Value::as_object_mut) {
            persistentvolumes::default_source(spec);
        }
    }

    fn validate(&self, _ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let (spec, path) = (&object["spec"], Path::new("spec"));
        fields::validate(SPEC, spec, &path, errors);
        fields::validate(STATUS, &object["status"], &Path::new("status"), errors);
        fields::validate(SOURCE, &spec["source"], &path.child("source"), errors);
    }

    fn validate_status(&self, _ctx: &Ctx<'_>, object: &Value, _old: &Value, errors: &mut Errors) {
        fields::validate(STATUS, &object["status"], &Path::new("status"), errors);
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        if object["spec"] != old["spec"] {
            let text = internal::compact("VolumeAttachmentSpec", &object["spec"]);
            let path = Path::new("spec");
            errors.with_text(ErrorType::Invalid, &path, text, validation::IMMUTABLE);
        }
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for VolumeAttachment {
    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[
            NAME,
            Column {
                format: "name",
                ..column("Attacher")
            },
            column("PV"),
            column("Node"),
            typed("Attached", "boolean"),
            AGE,
        ];
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        vec![
            name(object),
            spec.text("attacher").into(),
            spec["source"].text("persistentVolumeName").into(),
            spec.text("nodeName").into(),
            object["status"].flag("attached").into(),
            age(object, now),
        ]
    }
}

fn source(source: &Value, path: &Path<'_>, errors: &mut Errors) {
    let (inline, named) = (
        source.field("inlineVolumeSpec"),
        source.has("persistentVolumeName"),
    );
    match (inline, named) {
        (None, false) => errors.required(path, ONE_SOURCE),
        (Some(_), true) => errors.forbidden(path, ONE_SOURCE),
        (Some(spec), false) => inline_volume(errors, &path.child("inlineVolumeSpec"), spec),
        (None, true) if source.text("persistentVolumeName").is_empty() => errors.required(
            &path.child("persistentVolumeName"),
            "must specify non empty persistentVolumeName",
        ),
        (None, true) => {}
    }
}

/// Validates an inline volume spec, which replaces a PersistentVolume for pods whose in-tree volume has moved to a CSI driver.
fn inline_volume(errors: &mut Errors, path: &Path<'_>, spec: &Value) {
    fields::validate(INLINE, spec, path, errors);
    fields::validate(persistentvolumes::ACCESS_MODES, spec, path, errors);
    if !matches!(spec.text("persistentVolumeReclaimPolicy"), "" | "Retain") {
        let why = "may only be Retain in the context of inline volumes";
        errors.forbidden(&path.child("persistentVolumeReclaimPolicy"), why);
    }
    if spec.has("nodeAffinity") {
        errors.forbidden(&path.child("nodeAffinity"), NOT_INLINE);
    }
    persistentvolumes::sources(errors, path, spec, "");
    if !spec.text("storageClassName").is_empty() {
        errors.forbidden(&path.child("storageClassName"), NOT_INLINE);
    }
    if !matches!(spec["volumeMode"].as_str(), None | Some("Filesystem")) {
        let why =
            "may not specify volumeMode other than Filesystem in the context of inline volumes";
        errors.forbidden(&path.child("volumeMode"), why);
    }
}

fn attachment_metadata(metadata: &Value, path: &Path<'_>, errors: &mut Errors) {
    let entries = metadata.as_object().into_iter().flatten();
    let bytes: usize = entries
        .map(|(key, value)| key.len() + value.as_str().map_or(0, str::len))
        .sum();
    if bytes > MAX_METADATA {
        errors.too_long(path, MAX_METADATA);
    }
}

fn message(errors: &mut Errors, path: &Path<'_>, message: &str) {
    if message.len() > MAX_ERROR_MESSAGE {
        // kube-apiserver's message names this limit instead of its own.
        errors.too_long(path, MAX_METADATA);
    }
}

#[cfg(test)]
mod tests {
    use mullion_kube_text::field::causes;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_inline_volume_says_nothing_that_a_claim_would_bind_by() {
        let found = |spec: Value| causes(|errors| inline_volume(errors, &Path::new("v"), &spec));
        let csi = json!({"driver": "d", "volumeHandle": "h"});
        assert_eq!(
            found(
                json!({"accessModes": ["ReadWriteOnce"], "csi": csi, "volumeMode": "Filesystem"})
            ),
            [""; 0]
        );
        let bound = json!({
            "claimRef": {}, "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/a"}, "persistentVolumeReclaimPolicy": "Delete",
            "nodeAffinity": {}, "storageClassName": "a", "volumeMode": "Block",
        });
        assert_eq!(
            found(bound),
            [
                "v.claimRef: Forbidden: may not be specified in the context of inline volumes",
                "v.capacity: Forbidden: may not be specified in the context of inline volumes",
                "v.csi: Required value: has to be specified in the context of inline volumes",
                "v.accessModes: Required value",
                "v.persistentVolumeReclaimPolicy: Forbidden: may only be Retain in the context of inline volumes",
                "v.nodeAffinity: Forbidden: may not be specified in the context of inline volumes",
                "v.storageClassName: Forbidden: may not be specified in the context of inline volumes",
                "v.volumeMode: Forbidden: may not specify volumeMode other than Filesystem in the context of inline volumes",
            ]
        );
    }

    #[test]
    fn an_error_has_a_bounded_text_and_no_negative_code() {
        let errors =
            json!({"attachError": {"message": "x".repeat(1025)}, "detachError": {"errorCode": -1}});
        assert_eq!(
            causes(|found| fields::validate(STATUS, &errors, &Path::new("status"), found)),
            [
                "status.attachError.message: Too long: may not be more than 262144 bytes",
                "status.detachError.errorCode: Invalid value: -1: must be between 0 and 2147483647, inclusive",
            ]
        );
    }
}
