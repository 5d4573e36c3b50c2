//! Reads objects by the schemas of their kinds, as an API server reads them: which fields a kind does not have, and which kinds there are.
//!
//! Built-in kinds are those of Kubernetes 1.36. Custom resources are known by the definitions that this program carries and by those among
//! the checked objects. [`misfits`] finds values of another type, [`refusals`] what else the API server's validation refuses, [`unknown`] where
//! an unknown field stands; eksctl's ClusterConfig has a table of its own ([`cluster_config`]).

mod cluster_config;
mod misfits;
mod reading;
mod refusals;
#[cfg(test)]
mod tests;
mod unknown;

use std::sync::LazyLock;

use jiff::Timestamp;
use mullion_api::crds;
use mullion_apiserver::trial::Trial;
use mullion_kinds::schema::{Type, decode::Problem, structural::Schema};
use serde_json::Value;

use self::unknown::unknown_field;
use super::subject::Object;
pub(super) use reading::{
    BETA_VERSIONS, Misfit, Reading, Refusal, Refused, UnknownField, UnknownKind, Warned, remarks,
};
pub(super) use unknown::place;

/// The groups without a dot, which are Kubernetes' own: it has all their versions.
const OWN_GROUPS: [&str; 6] = ["", "apps", "autoscaling", "batch", "extensions", "policy"];
/// The group of files that kustomize reads and that are never sent to an API server.
const KUSTOMIZE: &str = "kustomize.config.k8s.io";
/// The API version of the plugins that are built into kustomize.
const KUSTOMIZE_PLUGIN: &str = "builtin";
/// API versions in which a kind of another one is looked for.
const USUAL: [&str; 12] = [
    "v1",
    "apps/v1",
    "batch/v1",
    "autoscaling/v2",
    "policy/v1",
    "networking.k8s.io/v1",
    "rbac.authorization.k8s.io/v1",
    "storage.k8s.io/v1",
    "scheduling.k8s.io/v1",
    "node.k8s.io/v1",
    "apiextensions.k8s.io/v1",
    "admissionregistration.k8s.io/v1",
];
/// The definitions that this program carries.
static CARRIED: LazyLock<Vec<Definition>> =
    LazyLock::new(|| MANIFESTS.iter().flat_map(definitions).collect());
/// The manifests of these definitions.
static MANIFESTS: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let manifests = crds::MANIFESTS.iter();
    let read = manifests.filter_map(|(_, text)| serde_saphyr::from_str(text).ok());
    read.collect()
});
/// The API server's validation of the built-in kinds and of these definitions.
static TRIAL: LazyLock<Trial> = LazyLock::new(|| {
    let mut trial = Trial::of_builtins();
    for definition in MANIFESTS.iter() {
        trial.define(definition);
    }
    trial
});

/// A version of a custom resource.
#[derive(Clone)]
struct Definition {
    api_version: String,
    kind: String,
    /// The type of the objects; `None` if the definition has no schema.
    schema: Option<Type>,
}

/// The schemas by which objects are read.
pub(super) struct Schemas {
    own: Vec<Definition>,
    /// The API server's validation of the kinds.
    trial: Trial,
    now: Timestamp,
}

impl Schemas {
    /// Collects the definitions among these objects. `now` is the time by which times in objects are judged.
    pub(super) fn of(objects: &[Object], now: Timestamp) -> Self {
        let own = objects
            .iter()
            .filter(|object| object.is("CustomResourceDefinition", "apiextensions.k8s.io"));
        let own: Vec<_> = own.map(|object| &object.value).collect();
        let mut trial = TRIAL.clone();
        for definition in &own {
            trial.define(definition);
        }
        Schemas {
            own: own.into_iter().flat_map(definitions).collect(),
            trial,
            now,
        }
    }

    /// Reads an object.
    pub(super) fn read(&self, object: &Object) -> Reading {
        let (api_version, kind) = (object.api_version(), object.kind());
        if cluster_config::is_of_eksctl(api_version) {
            return cluster_config::read(object);
        }
        let schema = match self.type_of(api_version, kind) {
            Ok(schema) => schema,
            Err(reading) => return reading,
        };
        let Some(schema) = schema else {
            return Reading::faultless();
        };
        let mut decoding = misfits::decode(&schema, &object.value);
        let refusals::Answer {
            misfits: in_custom,
            mut refused,
            mut warned,
        } = refusals::answer(&self.trial, &object.value, &decoding, self.now);
        if object.is_incomplete() {
            refused.clear();
            warned.clear();
        }
        let mut misfits = std::mem::take(&mut decoding.misfits);
        misfits.extend(in_custom);
        let unknown = decoding
            .problems
            .iter()
            .filter_map(|problem| match problem {
                Problem::Unknown(name) => Some(name),
                _ => None,
            });
        // Fields that begin with a dollar sign are directives of patches.
        let is_directive = |name: &&String| {
            let last = name.rsplit('.').next();
            last.is_some_and(|last| last.starts_with('$'))
        };
        let unknown = unknown.filter(|name| !is_directive(name));
        let unknown = unknown.map(|name| unknown_field(&schema, &object.value, name));
        let unknown: Vec<_> = unknown.collect();
        Reading::Read {
            unknown,
            misfits,
            refused,
            warned,
        }
    }

    /// Returns the type of a kind; `Ok(None)` if it is known and has no schema.
    fn type_of(&self, api_version: &str, kind: &str) -> Result<Option<Type>, Reading> {
        let lacking = [("kind", kind), ("apiVersion", api_version)];
        if let Some((lacks, _)) = lacking.into_iter().find(|(_, value)| value.is_empty()) {
            let near = USUAL.into_iter().find(|own| builtin(own, kind).is_some());
            return Err(Reading::Nameless { lacks, near });
        }
        if let Some(schema) = builtin(api_version, kind) {
            return Ok(Some(schema));
        }
        let group = group_of(api_version);
        let is_of_kustomize = group == KUSTOMIZE || api_version == KUSTOMIZE_PLUGIN;
        if is_of_kustomize || cluster_config::is_of_eksctl(api_version) {
            return Ok(None);
        }
        let all = || self.own.iter().chain(CARRIED.iter());
        let is_it = |own: &&Definition| own.kind == kind && own.api_version == api_version;
        if let Some(definition) = all().find(is_it) {
            return Ok(definition.schema.clone());
        }
        if OWN_GROUPS.contains(&group) || Type::has_builtin_version(api_version) {
            let near = near_kind(api_version, kind);
            return Err(Reading::NoSuchKind { near });
        }
        let is_other = |own: &Definition| own.kind == kind && group_of(&own.api_version) == group;
        let is_other_version = all().any(is_other);
        Err(Reading::Unknown { is_other_version })
    }

    /// Returns the kinds of these objects that nothing is known of, in the order of their first objects.
    pub(super) fn unknown<'o>(
        &self,
        objects: impl Iterator<Item = &'o Object>,
    ) -> Vec<UnknownKind> {
        let mut all: Vec<UnknownKind> = Vec::new();
        for object in objects {
            let (api_version, kind) = (object.api_version(), object.kind());
            let known = all
                .iter_mut()
                .find(|own| own.api_version == api_version && own.kind == kind);
            if let Some(known) = known {
                known.objects += 1;
                continue;
            }
            if let Err(Reading::Unknown { is_other_version }) = self.type_of(api_version, kind) {
                all.push(UnknownKind {
                    api_version: api_version.to_owned(),
                    kind: kind.to_owned(),
                    is_other_version,
                    objects: 1,
                });
            }
        }
        all
    }
}

/// Returns the group of an API version.
fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

/// Returns the type of a built-in kind. The table has the types of parts of kinds too, which have no kind themselves.
fn builtin(api_version: &str, kind: &str) -> Option<Type> {
    let schema = Type::builtin_kind(api_version, kind)?;
    (schema.field("kind").is_some() && schema.field("apiVersion").is_some()).then_some(schema)
}

/// Returns the kind, or the API version of the kind, that may have been meant.
fn near_kind(api_version: &str, kind: &str) -> Option<String> {
    let elsewhere = USUAL.into_iter().find(|own| builtin(own, kind).is_some());
    if let Some(own) = elsewhere {
        return Some(format!("{kind} is in {own}"));
    }
    let meant = crate::why::kinds::meant(kind)?;
    builtin(api_version, meant).map(|_| format!("the nearest kind is {meant}"))
}

/// Returns the versions of a CustomResourceDefinition.
fn definitions(manifest: &Value) -> Vec<Definition> {
    let spec = &manifest["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (group, kind) = (text(&spec["group"]), text(&spec["names"]["kind"]));
    let versions = spec["versions"].as_array().into_iter().flatten();
    let read = versions.map(|version| {
        let schema = &version["schema"]["openAPIV3Schema"];
        let keeps_all = spec["preserveUnknownFields"] == true;
        Definition {
            api_version: format!("{group}/{}", text(&version["name"])),
            kind: kind.clone(),
            schema: (schema.is_object() && !keeps_all).then(|| Schema::parse(schema).to_type()),
        }
    });
    read.collect()
}
