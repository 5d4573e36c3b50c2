//! StatefulSets: defaults, validation and table columns (`pkg/apis/apps`, `pkg/registry/apps/statefulset`).
//!
//! Every pod gets volumes for the claims of `volumeClaimTemplates`, so the template is validated as if it already had them.

use std::collections::HashSet;

use jiff::Timestamp;
use mullion_kube_text::{
    field::{ErrorType, Errors, Path},
    names,
    validation::selector::{Selector, label_selector},
};
use mullion_schema::tree::{Tree, object_at, set_default, set_zero};
use serde_json::{Map, Value, json};

use super::{
    Column, Kind,
    persistentvolumeclaims::{self, PersistentVolumeClaim},
    podspec::{self, internal},
    print,
    workloads::{self, Owner, Workload},
};
use crate::fields::{
    self, Among, Code, Field, Fields, Format, NOT_NEGATIVE, OneOf, always, filled, required, set,
};

/// The behaviour of apps/v1 statefulsets.
pub(super) struct StatefulSets;

const OWNER: Owner = Owner {
    selector_of: "statefulset",
    deadline_in: "StatefulSet",
};
const SPEC: &[Field] = &[
    required(
        "podManagementPolicy",
        Among(
            &["OrderedReady", "Parallel"],
            "must be 'OrderedReady' or 'Parallel'",
        ),
    ),
    always("updateStrategy", Code(update_strategy)),
    set("persistentVolumeClaimRetentionPolicy", Fields(RETENTION)),
    set("replicas", NOT_NEGATIVE),
    set("minReadySeconds", NOT_NEGATIVE),
    always("ordinals", Fields(ORDINALS)),
];
const ROLLING_UPDATE: &[Field] = &[set("partition", NOT_NEGATIVE)];
const RETENTION: &[Field] = &[
    always("whenDeleted", OneOf(&["Retain", "Delete"])),
    always("whenScaled", OneOf(&["Retain", "Delete"])),
];
const ORDINALS: &[Field] = &[set("start", NOT_NEGATIVE)];
/// What only creations check, because stored objects may have an invalid name.
const CREATED_SPEC: &[Field] = &[filled("serviceName", Format(names::dns_label))];
const COLUMNS: [Column; 5] = [
    print::NAME,
    print::column("Ready"),
    print::AGE,
    print::wide("Containers"),
    print::wide("Images"),
];
/// The mutable fields of the spec, in the order in which kube-apiserver's message lists them.
const MUTABLE: [&str; 7] = [
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

impl Workload for StatefulSets {
    fn default_spec(&self, spec: &mut Map<String, Value>) {
        set_zero(spec, "podManagementPolicy", "OrderedReady");
        let strategy = object_at(spec, "updateStrategy");
        let none_chosen = strategy
            .get("type")
            .and_then(Value::as_str)
            .is_none_or(str::is_empty);
        // SetDefaults_StatefulSet adds `rollingUpdate` only to a strategy that nobody chose, not to an explicit RollingUpdate.
        if none_chosen {
            strategy.insert("type".into(), "RollingUpdate".into());
            object_at(strategy, "rollingUpdate");
        }
        if strategy["type"] == "RollingUpdate"
            && let Some(rolling) = strategy
                .get_mut("rollingUpdate")
                .and_then(Value::as_object_mut)
        {
            set_default(rolling, "partition", 0);
        }
        let retention = object_at(spec, "persistentVolumeClaimRetentionPolicy");
        set_zero(retention, "whenDeleted", "Retain");
        set_zero(retention, "whenScaled", "Retain");
        set_default(spec, "replicas", 1);
        set_default(spec, "revisionHistoryLimit", 10);
        let claims = spec
            .get_mut("volumeClaimTemplates")
            .and_then(Value::as_array_mut);
        for claim in claims.into_iter().flatten() {
            PersistentVolumeClaim.default(claim);
            // kube-apiserver's conversion sets the type of these embedded objects, although no other embedded object has one.
            claim["apiVersion"] = "v1".into();
            claim["kind"] = "PersistentVolumeClaim".into();
        }
    }

    /// Removes `maxUnavailable`, whose feature gate `MaxUnavailableStatefulSet` is off in 1.36, unless the stored object has it.
    fn prepare(&self, object: &mut Value, old: Option<&Value>) {
        let stored = old.is_some_and(|old| {
            old["spec"]["updateStrategy"]["rollingUpdate"].has("maxUnavailable")
        });
        let sent = object.pointer_mut("/spec/updateStrategy/rollingUpdate");
        if let Some(sent) = sent.and_then(Value::as_object_mut)
            && !stored
        {
            sent.remove("maxUnavailable");
        }
    }

    fn validate_spec(&self, spec: &Value, path: &Path<'_>, errors: &mut Errors) {
        fields::validate(SPEC, spec, path, errors);
        let selector = &spec["selector"];
        let selector_path = path.child("selector");
        if selector.is_null() {
            errors.required(&selector_path, "");
        } else {
            label_selector(errors, &selector_path, selector);
            workloads::not_empty(selector, &OWNER, &selector_path, errors);
        }
        match Selector::from_label_selector(selector) {
            Err(_) => errors.with_text(
                ErrorType::Invalid,
                &selector_path,
                internal::label_selector(selector),
                "",
            ),
            Ok(selector) => template(spec, &selector, &path.child("template"), errors),
        }
    }

    /// Validates the claim templates, which never change, and the service name: stored objects may have an invalid one.
    fn validate_creation(&self, object: &Value, errors: &mut Errors) {
        let spec = Path::new("spec");
        let claims = spec.child("volumeClaimTemplates");
        claim_templates(&object["spec"], &claims, errors);
        fields::validate(CREATED_SPEC, &object["spec"], &spec, errors);
    }

    fn validate_change(&self, object: &Value, old: &Value, errors: &mut Errors) {
        let fixed = |object: &Value| {
            let mut spec = object["spec"].clone();
            if let Some(spec) = spec.as_object_mut() {
                spec.retain(|field, _| !MUTABLE.contains(&field.as_str()));
            }
            spec
        };
        if fixed(object) != fixed(old) {
            let (last, others) = MUTABLE.split_last().expect("the list is not empty");
            let others: Vec<String> = others.iter().map(|field| format!("'{field}'")).collect();
            errors.forbidden(
                &Path::new("spec"),
                format!(
                    "updates to statefulset spec for fields other than {} and '{last}' are forbidden",
                    others.join(", ")
                ),
            );
        }
    }

    fn validate_status(&self, object: &Value, old: &Value, errors: &mut Errors) {
        let (status, path) = (&object["status"], Path::new("status"));
        let counts = [
            "replicas",
            "readyReplicas",
            "currentReplicas",
            "updatedReplicas",
            "availableReplicas",
            "observedGeneration",
            "collisionCount",
        ];
        workloads::counts(status, &counts, &path, errors);
        let parts = [
            "readyReplicas",
            "currentReplicas",
            "updatedReplicas",
            "availableReplicas",
        ];
        workloads::parts_of_replicas(status, &parts, "status.readyReplicas", errors);
        workloads::not_decremented(object, old, "collisionCount", errors);
    }

    fn more_warnings(&self, object: &Value, new: bool) -> Vec<String> {
        let (spec, path, mut found) = (&object["spec"], Path::new("spec"), Vec::new());
        let path = path.child("volumeClaimTemplates");
        for (index, claim) in spec.items("volumeClaimTemplates").iter().enumerate() {
            let at = path.index(index);
            // kube-apiserver reports this path for an update.
            let within = at.child("Spec");
            let at = if new { at } else { within };
            found.extend(persistentvolumeclaims::fraction_warnings(
                &at,
                &claim["spec"],
            ));
        }
        if spec
            .integer("revisionHistoryLimit")
            .is_some_and(|limit| limit < 0)
        {
            found.push("spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended".to_owned());
        }
        found
    }

    fn columns(&self) -> &[Column] {
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let ready = format!(
            "{}/{}",
            object["status"].integer("readyReplicas").unwrap_or(0),
            object["spec"].integer("replicas").unwrap_or(0)
        );
        vec![print::name(object), ready.into(), print::age(object, now)]
    }

    fn wide_cells(&self, object: &Value) -> Vec<Value> {
        workloads::container_cells(&object["spec"]["template"]["spec"]).to_vec()
    }
}

fn update_strategy(strategy: &Value, path: &Path<'_>, errors: &mut Errors) {
    let at = path.child("rollingUpdate");
    match (strategy.text("type"), strategy.field("rollingUpdate")) {
        ("", _) => errors.required(path, ""),
        ("OnDelete", Some(rolling)) => errors.with_text(
            ErrorType::Invalid,
            &at,
            internal::compact("RollingUpdateStatefulSetStrategy", rolling),
            "only allowed for updateStrategy 'RollingUpdate'",
        ),
        ("RollingUpdate", Some(rolling)) => rolling_update(rolling, &at, errors),
        ("OnDelete" | "RollingUpdate", None) => {}
        _ => errors.with_text(
            ErrorType::Invalid,
            path,
            internal::compact("StatefulSetUpdateStrategy", strategy),
            "must be 'RollingUpdate' or 'OnDelete'",
        ),
    }
}

fn rolling_update(rolling: &Value, path: &Path<'_>, errors: &mut Errors) {
    fields::validate(ROLLING_UPDATE, rolling, path, errors);
    if let Some(unavailable) = rolling.field("maxUnavailable") {
        let at = path.child("maxUnavailable");
        workloads::int_or_percent(unavailable, &at, errors);
        if workloads::number(unavailable) == 0 {
            errors.invalid(&at, unavailable.clone(), "cannot be 0");
        }
        workloads::at_most_all(unavailable, &at, errors);
    }
}

fn template(spec: &Value, selector: &Selector, path: &Path<'_>, errors: &mut Errors) {
    let mut template = spec["template"].clone();
    if !selector.is_everything() {
        workloads::selected(&template, selector, path, errors);
    }
    let claims = spec
        .items("volumeClaimTemplates")
        .iter()
        .map(|claim| claim["metadata"].text("name"));
    let given = spec["template"]["spec"].items("volumes").iter();
    let mut given: HashSet<&str> = given.map(|volume| volume.text("name")).collect();
    for claim in claims.filter(|claim| given.insert(claim)) {
        let volume = json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
        match template["spec"]["volumes"].as_array_mut() {
            Some(volumes) => volumes.push(volume),
            None => template["spec"]["volumes"] = json!([volume]),
        }
    }
    // kube-apiserver names the pods itself, so it does not look at these fields.
    if let Some(pod) = template["spec"].as_object_mut() {
        pod.retain(|field, _| field != "hostname" && field != "subdomain");
    }
    workloads::template_of(&template, &OWNER, path, errors);
    podspec::validate_template_metadata(&template, path, errors);
}

fn claim_templates(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    for (index, claim) in spec.items("volumeClaimTemplates").iter().enumerate() {
        let at = path.index(index);
        persistentvolumeclaims::spec(&claim["spec"], &at.child("spec"), errors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_many_may_be_missing_is_kept_only_where_it_is_stored() {
        let set = |rolling: Value| json!({"spec": {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": rolling}}});
        let (with, without) = (
            json!({"partition": 1, "maxUnavailable": 2}),
            json!({"partition": 1}),
        );
        for (old, kept) in [
            (None, &without),
            (Some(set(without.clone())), &without),
            (Some(set(json!({"maxUnavailable": 1}))), &with),
        ] {
            let mut sent = set(with.clone());
            StatefulSets.prepare(&mut sent, old.as_ref());
            assert_eq!(sent, set(kept.clone()));
        }
    }
}
