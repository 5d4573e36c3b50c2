//! Finds the FlowSchema of a request (kube-apiserver: apiserver/pkg/util/flowcontrol/rule.go). Here it only sets response headers and
//! does not affect queueing.
//!
//! The schemas are parsed again only when a schema or a priority level has changed. Matching a request allocates nothing.

use std::sync::Arc;

use arc_swap::ArcSwap;
use http::{HeaderMap, HeaderName, HeaderValue};
use mullion_kinds::{
    flowcontrol::GROUP,
    request::{
        User,
        attributes::{Attributes, Resource, Target},
    },
};
use mullion_schema::tree::Tree;
use mullion_store::{Collection, Key, Store};
use serde_json::Value;

const ALL: &str = "*";
const SCHEMA: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const LEVEL: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");

/// The response headers that name a request's FlowSchema and priority level.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Flow {
    schema: HeaderValue,
    level: HeaderValue,
}

impl Flow {
    /// Adds the headers to a response.
    pub(crate) fn add_headers(self, headers: &mut HeaderMap) {
        headers.insert(SCHEMA, self.schema);
        headers.insert(LEVEL, self.level);
    }
}

/// The FlowSchemas of a server, parsed.
pub(crate) struct Flows {
    schemas: Arc<Collection>,
    levels: Arc<Collection>,
    read: ArcSwap<Schemas>,
}

/// The parsed schemas at one moment, in the order in which they are matched.
#[derive(Default)]
struct Schemas {
    /// The last changes of schemas and levels that this contains; `None` before the first read.
    seen: Option<[u64; 2]>,
    schemas: Vec<Schema>,
}

struct Schema {
    precedence: i64,
    flow: Flow,
    rules: Vec<Rule>,
}

/// A `PolicyRulesWithSubjects`.
struct Rule {
    subjects: Vec<Subject>,
    resources: Vec<ResourceRule>,
    paths: Vec<PathRule>,
}

enum Subject {
    User(String),
    Group(String),
    /// A service account of a namespace, or all of them.
    Account {
        namespace: String,
        name: String,
    },
}

struct ResourceRule {
    verbs: Vec<String>,
    groups: Vec<String>,
    resources: Vec<String>,
    namespaces: Vec<String>,
    in_cluster: bool,
}

struct PathRule {
    verbs: Vec<String>,
    urls: Vec<String>,
}

impl Flows {
    /// Creates the parsed view of a store's schemas.
    pub(crate) fn new(store: &Store) -> Self {
        let [schemas, levels] = collections(store);
        Flows {
            schemas,
            levels,
            read: ArcSwap::default(),
        }
    }

    /// Returns the flow of the first schema that matches a request; `None` for long-running requests other than watches, to which flow
    /// control does not apply.
    pub(crate) fn of(&self, user: &User, attributes: &Attributes<'_>) -> Option<Flow> {
        if takes_long(attributes) {
            return None;
        }
        // Read before the objects, so that a change in between is noticed at the next call.
        let last = [self.schemas.last_change(), self.levels.last_change()];
        let mut read = self.read.load();
        if read.seen != Some(last) {
            let seen = Some(last);
            let schemas = self.schemas();
            self.read.store(Arc::new(Schemas { seen, schemas }));
            read = self.read.load();
        }
        let mut schemas = read.schemas.iter();
        let found = schemas.find(|schema| {
            let mut rules = schema.rules.iter();
            rules.any(|rule| rule.matches(user, attributes))
        })?;
        Some(found.flow.clone())
    }

    /// Returns the schemas whose priority level exists, sorted by precedence and then by name.
    fn schemas(&self) -> Vec<Schema> {
        let objects = self.schemas.snapshot(None).objects;
        let schemas = objects.iter().filter_map(|object| {
            let object = object.parse();
            let spec = &object["spec"];
            let level = spec["priorityLevelConfiguration"].text("name");
            // kube-apiserver leaves out dangling schemas: a request must not get the uid of a level that does not exist.
            let level = self.levels.get(Key::new(None, level).as_str())?.parse();
            let uid = |object: &Value| HeaderValue::from_str(object["metadata"].text("uid")).ok();
            Some(Schema {
                precedence: spec.integer("matchingPrecedence").unwrap_or_default(),
                flow: Flow {
                    schema: uid(&object)?,
                    level: uid(&level)?,
                },
                rules: spec.items("rules").iter().map(Rule::of).collect(),
            })
        });
        let mut schemas: Vec<Schema> = schemas.collect();
        // The snapshot is in the order of the names and the sort is stable, so equal precedences go by name.
        schemas.sort_by_key(|schema| schema.precedence);
        schemas
    }
}

/// Returns whether a request is long-running but not a watch (kube-apiserver: BasicLongRunningRequestCheck).
fn takes_long(attributes: &Attributes<'_>) -> bool {
    match &attributes.target {
        Target::Resource(resource) => matches!(
            resource.subresource,
            "attach" | "exec" | "log" | "portforward" | "proxy"
        ),
        Target::Path(path) => path.starts_with("/debug/pprof/"),
    }
}

impl Rule {
    fn of(rule: &Value) -> Self {
        let resources = rule.items("resourceRules").iter();
        let paths = rule.items("nonResourceRules").iter();
        Rule {
            subjects: rule
                .items("subjects")
                .iter()
                .filter_map(Subject::of)
                .collect(),
            resources: resources
                .map(|rule| ResourceRule {
                    verbs: texts(rule, "verbs"),
                    groups: texts(rule, "apiGroups"),
                    resources: texts(rule, "resources"),
                    namespaces: texts(rule, "namespaces"),
                    in_cluster: rule["clusterScope"] == true,
                })
                .collect(),
            paths: paths
                .map(|rule| PathRule {
                    verbs: texts(rule, "verbs"),
                    urls: texts(rule, "nonResourceURLs"),
                })
                .collect(),
        }
    }

    fn matches(&self, user: &User, attributes: &Attributes<'_>) -> bool {
        if !self.subjects.iter().any(|subject| subject.is(user)) {
            return false;
        }
        let verb = &*attributes.verb;
        match &attributes.target {
            Target::Resource(resource) => {
                let mut rules = self.resources.iter();
                rules.any(|rule| has(&rule.verbs, verb) && rule.names(resource))
            }
            Target::Path(path) => {
                let mut rules = self.paths.iter();
                rules.any(|rule| {
                    has(&rule.verbs, verb) && rule.urls.iter().any(|url| covers(url, path))
                })
            }
        }
    }
}

impl Subject {
    fn of(subject: &Value) -> Option<Self> {
        let name = |field: &str| Some(subject.get(field)?.text("name").to_owned());
        match subject.text("kind") {
            "User" => Some(Subject::User(name("user")?)),
            "Group" => Some(Subject::Group(name("group")?)),
            "ServiceAccount" => Some(Subject::Account {
                namespace: subject["serviceAccount"].text("namespace").to_owned(),
                name: name("serviceAccount")?,
            }),
            _ => None,
        }
    }

    fn is(&self, user: &User) -> bool {
        match self {
            Subject::User(name) => name == ALL || *name == user.name,
            Subject::Group(name) => name == ALL || user.groups.contains(name),
            Subject::Account { namespace, name } => {
                let account = user.name.strip_prefix("system:serviceaccount:");
                let account = account.and_then(|account| account.strip_prefix(&**namespace));
                let account = account.and_then(|account| account.strip_prefix(':'));
                account.is_some_and(|account| name == ALL || account == name)
            }
        }
    }
}

impl ResourceRule {
    fn names(&self, resource: &Resource<'_>) -> bool {
        let is_named = |named: &String| match named.split_once('/') {
            Some((parent, part)) => parent == resource.resource && part == resource.subresource,
            None => named == resource.resource && resource.subresource.is_empty(),
        };
        (is_all(&self.resources) || self.resources.iter().any(is_named))
            && has(&self.groups, resource.group)
            && match resource.namespace {
                // A rule reaches cluster-scoped requests only if it says so, whatever its namespaces are.
                "" => self.in_cluster,
                namespace => has(&self.namespaces, namespace),
            }
    }
}

/// Returns the collections of FlowSchemas and of priority levels.
pub(crate) fn collections(store: &Store) -> [Arc<Collection>; 2] {
    ["flowschemas", "prioritylevelconfigurations"]
        .map(|plural| store.collection(&format!("{plural}.{GROUP}")))
}

fn texts(rule: &Value, field: &str) -> Vec<String> {
    let items = rule.items(field).iter();
    items
        .filter_map(|item| item.as_str().map(str::to_owned))
        .collect()
}

fn is_all(list: &[String]) -> bool {
    matches!(list, [only] if only == ALL)
}

fn has(list: &[String], wanted: &str) -> bool {
    is_all(list) || list.iter().any(|item| item == wanted)
}

/// Returns whether a path equals one that a rule names, or is below it.
fn covers(url: &str, path: &str) -> bool {
    if url == ALL || url == path {
        return true;
    }
    let above = url.strip_suffix('*').unwrap_or(url);
    let above = above.strip_suffix('/').unwrap_or(above);
    let below = path.strip_prefix(above);
    below.is_some_and(|below| below.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use jiff::Timestamp;
    use mullion_kinds::flowcontrol;
    use mullion_store::{Change, Draft, EventType, Window};
    use serde_json::json;

    use super::*;
    use crate::request::attributes::of_request;

    fn put(collection: &Arc<Collection>, mut object: Value) {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        object["metadata"]["uid"] = format!("uid-of-{name}").into();
        let draft = Draft::new(EventType::Added, &object, Box::default(), 1);
        let change = Change::Create(Key::new(None, &name), draft);
        let committed = collection.commit(change, Timestamp::UNIX_EPOCH);
        let committed = committed.now_or_never().expect("memory does not wait");
        committed.expect("the name is free");
    }

    fn user(name: &str, groups: &[&str]) -> User {
        User {
            name: name.to_owned(),
            groups: groups.iter().map(|&group| group.to_owned()).collect(),
            ..User::default()
        }
    }

    fn matches(rule: &Value, user: &User, method: http::Method, path: &str) -> bool {
        let attributes = of_request(&method, path, None);
        Rule::of(rule).matches(user, &attributes)
    }

    #[test]
    fn a_rule_is_for_its_subjects_verbs_resources_and_namespaces() {
        let rule = json!({
            "subjects": [
                {"kind": "ServiceAccount", "serviceAccount": {"namespace": "kube-system", "name": "*"}},
                {"kind": "ServiceAccount", "serviceAccount": {"namespace": "a", "name": "b"}},
                {"kind": "User", "user": {"name": "jane"}}, {"kind": "Group", "group": {"name": "g"}},
            ],
            "resourceRules": [{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods", "pods/status"], "namespaces": ["default"]}],
            "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/a/*", "/b"]}],
        });
        let pod = "/api/v1/namespaces/default/pods/p";
        let is = |user: &User| matches(&rule, user, http::Method::GET, pod);
        assert!(is(&user("system:serviceaccount:kube-system:x", &[])));
        assert!(is(&user("system:serviceaccount:a:b", &[])));
        assert!(is(&user("jane", &[])) && is(&user("x", &["f", "g"])));
        assert!(!is(&user("system:serviceaccount:a:bc", &[])));
        assert!(!is(&user("system:serviceaccount:kube-system2:x", &[])));
        assert!(!is(&user("joe", &["f"])));
        let jane = user("jane", &[]);
        let get = |path: &str| matches(&rule, &jane, http::Method::GET, path);
        assert!(get("/api/v1/namespaces/default/pods/p/status"));
        assert!(!get("/api/v1/namespaces/default/pods/p/resize"));
        assert!(!get("/api/v1/namespaces/other/pods/p") && !get("/api/v1/pods"));
        assert!(!matches(&rule, &jane, http::Method::DELETE, pod));
        assert!(get("/a/b") && get("/a/") && get("/b") && get("/b/c"));
        assert!(!get("/a") && !get("/bc") && !get("/"));
    }

    #[test]
    fn finding_a_schema_takes_no_memory() {
        let store = Store::new(Window::default());
        let [schemas, levels] = collections(&store);
        for level in flowcontrol::levels() {
            put(&levels, level);
        }
        for schema in flowcontrol::schemas() {
            put(&schemas, schema);
        }
        let flows = Flows::new(&store);
        let jane = user("jane", &["developers", "system:authenticated"]);
        let path = "/api/v1/namespaces/default/configmaps/x";
        let attributes = of_request(&http::Method::GET, path, None);
        let found = flows.of(&jane, &attributes);
        assert!(found.is_some());
        let counted = allocation_counter::measure(|| {
            assert_eq!(flows.of(&jane, &attributes), found);
        });
        assert_eq!(counted.count_total, 0);
    }
}
