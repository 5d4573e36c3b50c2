//! Reads objects by the schemas of their kinds, as an API server reads them: which fields a kind does not have, and which kinds there are.
//!
//! Built-in kinds are those of Kubernetes 1.36. Custom resources are known by the definitions that this program carries and by those among
//! the checked objects. [`misfits`] finds values of another type, [`refusals`] what else the API server's validation refuses, [`unknown`] where
//! an unknown field stands; eksctl's ClusterConfig has a table of its own ([`cluster_config`]).

mod cluster_config;
mod misfits;
mod refusals;
mod unknown;

use std::sync::LazyLock;

use mullion_api::crds;
use mullion_apiserver::trial::Trial;
use mullion_kinds::schema::{Type, decode::Problem, structural::Schema};
use serde_json::Value;

use self::unknown::unknown_field;
use super::{path::Path, subject::Object};
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
}

/// What the schema of its kind says of an object.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Reading {
    /// The object was read, with these faults.
    Read {
        /// The fields that the kind does not have.
        unknown: Vec<UnknownField>,
        /// The values that are of another type than their fields.
        misfits: Vec<Misfit>,
        /// What else the API server refuses.
        refused: Vec<Refused>,
    },
    /// The object has no kind, or no apiVersion.
    Nameless {
        /// The field that lacks: `kind` or `apiVersion`.
        lacks: &'static str,
        /// The API version in which the kind is.
        near: Option<&'static str>,
    },
    /// Kubernetes has the API version, or would have it, but not the kind. `near` is what may have been meant.
    NoSuchKind { near: Option<String> },
    /// Nothing is known of the kind, or of this version of the kind.
    Unknown { is_other_version: bool },
}

impl Reading {
    /// Returns the reading of an object without faults.
    fn faultless() -> Self {
        Reading::Read {
            unknown: Vec::new(),
            misfits: Vec::new(),
            refused: Vec::new(),
        }
    }
}

/// A field that a kind does not have.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct UnknownField {
    /// The field as API servers name it, as in `spec.containers[0].imag`.
    pub(super) name: String,
    pub(super) path: Path,
    /// The field that may have been meant.
    pub(super) near: Option<String>,
}

impl UnknownField {
    /// Returns whether the field that may have been meant is the one that lacks.
    fn is_for(&self, lacking: &Refused) -> bool {
        let around = self.path.0.split_last().map(|(_, around)| around);
        let name = lacking.field.rsplit('.').next();
        self.near.as_deref() == name && around == Some(&lacking.path.0)
    }
}

/// A value of another type than its field.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Misfit {
    /// The place of the value; the object as a whole where the value is not found.
    pub(super) path: Path,
    /// What the field takes, such as `a whole number`; `None` if that is not known.
    pub(super) expected: Option<&'static str>,
    pub(super) refusal: Refusal,
}

/// Who refuses a value, and in which words.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Refusal {
    /// The API server refuses to decode the object, with this error.
    Decoding(String),
    /// The API server refuses the value of a custom resource, with this error.
    Validation(String),
    /// eksctl refuses the file.
    Eksctl,
}

/// A value that the API server refuses, or a field that it requires.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Refused {
    /// The place of the field, or of the innermost field around it that the object has.
    pub(super) path: Path,
    /// The field as the API server names it.
    pub(super) field: String,
    /// The API server's message without the field.
    pub(super) why: String,
    /// The allowed value that may have been meant.
    pub(super) near: Option<String>,
    pub(super) is_missing: bool,
}

/// The objects of a kind that nothing is known of.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct UnknownKind {
    pub(super) api_version: String,
    pub(super) kind: String,
    /// Whether another version of the kind is known.
    pub(super) is_other_version: bool,
    /// The number of objects.
    pub(super) objects: usize,
}

impl UnknownKind {
    /// Returns the remark that nothing of the objects was checked.
    pub(super) fn remark(&self) -> String {
        let UnknownKind {
            api_version, kind, ..
        } = self;
        if self.is_other_version {
            format!("the fields of {kind} are not checked: its version {api_version} is not known")
        } else {
            format!(
                "nothing of {kind} ({api_version}) is checked: the kind is not known, unless its CustomResourceDefinition is checked with it"
            )
        }
    }
}

impl Schemas {
    /// Collects the definitions among these objects.
    pub(super) fn of(objects: &[Object]) -> Self {
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
        let (in_custom, mut refused) = refusals::errors(&self.trial, &object.value, &decoding);
        if object.is_incomplete() {
            refused.clear();
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
        // A field that lacks because it is misspelt is said once.
        refused.retain(|own| !own.is_missing || !unknown.iter().any(|field| field.is_for(own)));
        Reading::Read {
            unknown,
            misfits,
            refused,
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Object {
        Object {
            value,
            text: 0,
            document: 0,
            root: Path::default(),
            is_patch: false,
        }
    }

    fn read(value: Value) -> Reading {
        Schemas::of(&[]).read(&object(value))
    }

    fn fields(reading: Reading) -> Vec<(String, String, Option<String>)> {
        match reading {
            Reading::Read { unknown, .. } => unknown
                .into_iter()
                .map(|own| (own.name, own.path.to_string(), own.near))
                .collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_field_that_a_kind_does_not_have_is_found_where_it_stands() {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "annotation": {}},
            "spec": {
                "nodeSelectr": {}, "containers": [{"name": "a"}, {"name": "b", "imag": "x"}],
                "volumes": [{"name": "v", "$patch": "delete"}],
            },
        });
        let near = |name: &str| Some(name.to_owned());
        let mut found = fields(read(pod));
        found.sort();
        assert_eq!(
            found,
            [
                (
                    "metadata.annotation",
                    "metadata.annotation",
                    near("annotations")
                ),
                (
                    "spec.containers[1].imag",
                    "spec.containers[1].imag",
                    near("image")
                ),
                ("spec.nodeSelectr", "spec.nodeSelectr", near("nodeSelector")),
            ]
            .map(|(name, path, near)| (name.to_owned(), path.to_owned(), near))
        );
    }

    #[test]
    fn custom_resources_are_known_by_their_definitions() {
        let pool = |spec: Value| json!({"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "a"}, "spec": spec});
        let found = fields(read(pool(json!({"wieght": 1}))));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            (&*found[0].0, found[0].2.as_deref()),
            ("spec.wieght", Some("weight"))
        );
        let widget = || {
            object(json!({"apiVersion": "example.com/v1", "kind": "Widget", "spec": {"sise": 1}}))
        };
        let definition = object(json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "widgets.example.com"},
            "spec": {"group": "example.com", "names": {"kind": "Widget"}, "versions": [{"name": "v1", "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer"}}}},
            }}}]},
        }));
        let unknown = Schemas::of(&[]).unknown([&widget(), &widget()].into_iter());
        assert_eq!((unknown.len(), unknown[0].objects), (1, 2));
        assert!(!unknown[0].is_other_version);
        let schemas = Schemas::of(&[definition]);
        assert_eq!(schemas.unknown([&widget()].into_iter()), []);
        assert_eq!(fields(schemas.read(&widget()))[0].0, "spec.sise");
    }

    #[test]
    fn a_kind_that_kubernetes_does_not_have_names_what_may_be_meant() {
        let near = |api_version: &str, kind: &str| match read(
            json!({"apiVersion": api_version, "kind": kind}),
        ) {
            Reading::NoSuchKind { near } => near.unwrap_or_default(),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            near("apps/v1", "Deploymnet"),
            "the nearest kind is Deployment"
        );
        assert_eq!(near("v1", "Deployment"), "Deployment is in apps/v1");
        assert_eq!(near("v1", "PodSpec"), "");
        assert_eq!(near("apps/v7", "Widget"), "");
        let beta = read(json!({"apiVersion": "karpenter.sh/v1beta1", "kind": "NodePool"}));
        assert_eq!(
            beta,
            Reading::Unknown {
                is_other_version: true
            }
        );
        let file =
            read(json!({"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}));
        assert_eq!(file, Reading::faultless());
    }

    /// Returns the misfits of an object as place, what the field takes, and the words of who refuses the value.
    fn misfits(value: Value) -> Vec<(String, &'static str, String)> {
        let Reading::Read { misfits, .. } = read(value) else {
            panic!("nothing was read");
        };
        let shown = misfits.into_iter().map(|own| {
            let words = match own.refusal {
                Refusal::Decoding(words) | Refusal::Validation(words) => words,
                Refusal::Eksctl => "eksctl".to_owned(),
            };
            (
                own.path.to_string(),
                own.expected.unwrap_or_default(),
                words,
            )
        });
        shown.collect()
    }

    #[test]
    fn a_value_of_another_type_is_refused_in_the_servers_words() {
        let found = misfits(
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": "3"}}),
        );
        let [(path, expected, why)] = found.as_slice() else {
            panic!("{found:?}");
        };
        assert_eq!(
            (path.as_str(), *expected),
            ("spec.replicas", "a whole number")
        );
        assert!(
            why.starts_with("json: cannot unmarshal string into Go struct field"),
            "{why}"
        );
    }

    #[test]
    fn values_of_other_types_hide_neither_each_other_nor_unknown_fields() {
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "labels": {"a": 1}},
            "spec": {
                "replica": 3, "replicas": "3",
                "template": {"spec": {"containers": [
                    {"name": 1, "imag": "x"}, {"name": 2, "resources": {"limits": {"memory": "1Gib"}}}, "text",
                ]}},
            },
        });
        let found = misfits(deployment.clone());
        let mut places: Vec<_> = found.iter().map(|(path, ..)| path.as_str()).collect();
        places.sort_unstable();
        assert_eq!(
            places,
            [
                "metadata.labels.a",
                "spec.replicas",
                "spec.template.spec.containers[0].name",
                "spec.template.spec.containers[1].name",
                "spec.template.spec.containers[1].resources.limits.memory",
                "spec.template.spec.containers[2]",
            ]
        );
        let mut unknown = fields(read(deployment));
        unknown.sort();
        let unknown: Vec<_> = unknown.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(
            unknown,
            ["spec.replica", "spec.template.spec.containers[0].imag"]
        );
    }

    #[test]
    fn a_value_of_another_type_in_a_custom_resource_is_found_too() {
        let pool = json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": 7},
            "spec": {
                "weight": "10", "limits": {"cpu": 8, "memory": "1Gi"},
                "template": {"spec": {"requirements": [{"key": "a", "operator": "In", "values": "b"}]}},
            },
        });
        let mut found = misfits(pool);
        found.sort();
        let found: Vec<_> = found
            .iter()
            .map(|(path, expected, why)| (path.as_str(), *expected, why.as_str()))
            .collect();
        assert_eq!(
            found,
            [
                (
                    "metadata.name",
                    "a text",
                    "json: cannot unmarshal number into Go struct field ObjectMeta.name of type string"
                ),
                (
                    "spec.template.spec.requirements[0].values",
                    "a list",
                    r#"spec.template.spec.requirements[0].values: Invalid value: "string": spec.template.spec.requirements[0].values in body must be of type array: "string""#
                ),
                (
                    "spec.weight",
                    "a whole number",
                    r#"spec.weight: Invalid value: "string": spec.weight in body must be of type integer: "string""#
                ),
            ]
        );
    }

    #[test]
    fn an_object_without_a_kind_or_an_api_version_says_which_and_what_may_be_meant() {
        let lacks = |value: Value| match read(value) {
            Reading::Nameless { lacks, near } => (lacks, near),
            other => panic!("{other:?}"),
        };
        let deployment = json!({"kind": "Deployment", "metadata": {"name": "web"}});
        assert_eq!(lacks(deployment), ("apiVersion", Some("apps/v1")));
        assert_eq!(lacks(json!({"kind": "Widget"})), ("apiVersion", None));
        assert_eq!(lacks(json!({"apiVersion": "v1"})), ("kind", None));
    }

    #[test]
    fn a_file_of_eksctl_is_read_by_the_fields_of_eksctl() {
        let config = |value: Value| json!({"apiVersion": "eksctl.io/v1alpha5", "kind": "ClusterConfig", "nodeGroups": [value]});
        let found = fields(read(config(json!({"name": "a", "desiredCapcity": 3}))));
        let near = Some("desiredCapacity".to_owned());
        let name = "nodeGroups[0].desiredCapcity".to_owned();
        assert_eq!(found, [(name.clone(), name, near)]);
        let found = misfits(config(json!({"name": "a", "minSize": "3"})));
        assert_eq!(
            found,
            [(
                "nodeGroups[0].minSize".to_owned(),
                "a whole number",
                "eksctl".to_owned()
            )]
        );
        let near = |api_version: &str, kind: &str| match read(
            json!({"apiVersion": api_version, "kind": kind}),
        ) {
            Reading::NoSuchKind { near } => near,
            other => panic!("{other:?}"),
        };
        let meant = Some("eksctl reads ClusterConfig in eksctl.io/v1alpha5".to_owned());
        assert_eq!(near("eksctl.io/v1alpha5", "ClusterConfg"), meant);
        assert_eq!(near("eksctl.io/v1alpha4", "ClusterConfig"), meant);
    }
}
