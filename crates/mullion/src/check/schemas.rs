//! Reads objects by the schemas of their kinds, as an API server reads them: which fields a kind does not have, and which kinds there are.
//!
//! Built-in kinds are those of Kubernetes 1.36. Custom resources are known by the definitions that this program carries and by those among
//! the checked objects.

use std::sync::LazyLock;

use mullion_api::crds;
use mullion_engine::remedy::distance;
use mullion_kinds::schema::{
    Node, Type,
    decode::{self, Problem},
    structural::Schema,
};
use serde_json::Value;

use super::{
    path::{Path, Step},
    subject::Object,
};

/// The groups without a dot, which are Kubernetes' own: it has all their versions.
const OWN_GROUPS: [&str; 6] = ["", "apps", "autoscaling", "batch", "extensions", "policy"];
/// The groups of files that are read by programs and never sent to an API server.
const NEVER_SENT: [&str; 2] = ["kustomize.config.k8s.io", "eksctl.io"];
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
/// The largest edit distance at which a field is suggested in place of an unknown one.
const NEAR: usize = 2;

/// The definitions that this program carries.
static CARRIED: LazyLock<Vec<Definition>> = LazyLock::new(|| {
    let manifests = crds::MANIFESTS.iter();
    let read = manifests.filter_map(|(_, text)| serde_saphyr::from_str::<Value>(text).ok());
    read.flat_map(|manifest| definitions(&manifest)).collect()
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
}

/// What the schema of its kind says of an object.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Reading {
    /// The object has these fields, which its kind does not have.
    Read(Vec<UnknownField>),
    /// A value is of another type than its field. The text is the API server's.
    Misfit(String),
    /// Kubernetes has the API version, or would have it, but not the kind. `near` is what may have been meant.
    NoSuchKind { near: Option<String> },
    /// Nothing is known of the kind, or of this version of the kind.
    Unknown { is_other_version: bool },
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
        Schemas {
            own: own.flat_map(|object| definitions(&object.value)).collect(),
        }
    }

    /// Reads an object.
    pub(super) fn read(&self, object: &Object) -> Reading {
        let (api_version, kind) = (object.api_version(), object.kind());
        let schema = match self.type_of(api_version, kind) {
            Ok(schema) => schema,
            Err(reading) => return reading,
        };
        let Some(schema) = schema else {
            return Reading::Read(Vec::new());
        };
        match decode::value(&schema, object.value.clone()) {
            Ok(decoded) => {
                let unknown = decoded.problems.iter().filter_map(|problem| match problem {
                    Problem::Unknown(name) => Some(name),
                    _ => None,
                });
                // Fields that begin with a dollar sign are directives of patches.
                let is_directive = |name: &&String| {
                    let last = name.rsplit('.').next();
                    last.is_some_and(|last| last.starts_with('$'))
                };
                let unknown = unknown.filter(|name| !is_directive(name));
                let found = unknown.map(|name| unknown_field(&schema, &object.value, name));
                Reading::Read(found.collect())
            }
            Err(error) => Reading::Misfit(error.to_string()),
        }
    }

    /// Returns the type of a kind; `Ok(None)` if it is known and has no schema.
    fn type_of(&self, api_version: &str, kind: &str) -> Result<Option<Type>, Reading> {
        if let Some(schema) = builtin(api_version, kind) {
            return Ok(Some(schema));
        }
        let group = group_of(api_version);
        if NEVER_SENT.contains(&group) {
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

/// Describes a field that the type of an object does not have.
fn unknown_field(schema: &Type, object: &Value, name: &str) -> UnknownField {
    let mut steps = Vec::new();
    if !find(name, object, &mut steps) {
        steps.clear();
    }
    let near = steps.split_last().and_then(|(last, parents)| {
        let Step::Key(last) = last else { return None };
        nearest(&below(schema, parents)?, last)
    });
    UnknownField {
        name: name.to_owned(),
        path: Path(steps),
        near,
    }
}

/// Finds the steps of a field in an object by the field's name, as in `spec.containers[0].imag`. Keys may have dots too, so each key that the
/// name may begin with is tried.
fn find(rest: &str, value: &Value, steps: &mut Vec<Step>) -> bool {
    if rest.is_empty() {
        return true;
    }
    if let Some((index, after)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let item = index.parse::<usize>().ok();
        let item = item.and_then(|index| Some((index, value.get(index)?)));
        let Some((index, item)) = item else {
            return false;
        };
        steps.push(Step::Index(index));
        let found = find(after.strip_prefix('.').unwrap_or(after), item, steps);
        if !found {
            steps.pop();
        }
        return found;
    }
    for (key, inner) in value.as_object().into_iter().flatten() {
        let Some(after) = rest.strip_prefix(key.as_str()) else {
            continue;
        };
        let after = match after.strip_prefix('.') {
            Some(after) => after,
            None if after.is_empty() || after.starts_with('[') => after,
            None => continue,
        };
        steps.push(Step::Key(key.clone()));
        if find(after, inner, steps) {
            return true;
        }
        steps.pop();
    }
    false
}

/// Returns the type of the value at a path.
fn below(schema: &Type, steps: &[Step]) -> Option<Type> {
    let Some((first, rest)) = steps.split_first() else {
        return Some(schema.clone());
    };
    let inner = match (schema.node(), first) {
        (Node::Struct(_), Step::Key(key)) => schema.field(key)?,
        (Node::Map { value, .. }, Step::Key(_)) => schema.sibling(*value),
        (Node::List(list), Step::Index(_)) => schema.sibling(list.item),
        _ => return None,
    };
    below(&inner, rest)
}

/// Returns the field of a type whose name is most like another one.
fn nearest(schema: &Type, name: &str) -> Option<String> {
    let Node::Struct(fields) = schema.node() else {
        return None;
    };
    let wanted = name.to_lowercase();
    let names = fields.fields.iter().map(|field| field.name.to_string());
    let near = names.map(|own| (distance(&wanted, &own.to_lowercase()), own));
    let (letters, own) = near.min()?;
    // A short name is as far from many others.
    (letters <= NEAR && letters < name.chars().count()).then_some(own)
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
        }
    }

    fn read(value: Value) -> Reading {
        Schemas::of(&[]).read(&object(value))
    }

    fn fields(reading: Reading) -> Vec<(String, String, Option<String>)> {
        match reading {
            Reading::Read(fields) => fields
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
    fn keys_with_dots_lead_to_their_fields() {
        let object = json!({"a": {"b.c/d": [{"e": {"f": 1}}], "b": {}}});
        let mut steps = Vec::new();
        assert!(find("a.b.c/d[0].e.f", &object, &mut steps));
        assert_eq!(Path(steps).to_string(), "a[b.c/d][0].e.f");
        let mut none = Vec::new();
        assert!(!find("a.b.c", &object, &mut none));
        assert_eq!(none, []);
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
        assert_eq!(file, Reading::Read(Vec::new()));
    }

    #[test]
    fn a_value_of_another_type_is_refused_in_the_servers_words() {
        let read =
            read(json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": "3"}}));
        let Reading::Misfit(why) = read else {
            panic!("{read:?}");
        };
        assert!(
            why.starts_with("json: cannot unmarshal string into Go struct field"),
            "{why}"
        );
    }
}
