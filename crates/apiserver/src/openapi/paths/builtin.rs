//! The paths of built-in and provided resources: the verbs that discovery lists, the old watch paths, and the requests that are forwarded
//! to nodes. Source: k8s.io/apiserver: pkg/endpoints/installer.go.

use mullion_kinds::{Resource, Subresource};
use serde_json::{Map, Value, json};

use super::{
    verbs::{BUILTIN, PROVIDED, Profile, Verb},
    writer::{Place, Writer},
};
use crate::{
    openapi::{
        Dialect,
        wire::{DELETE_OPTIONS, PATCH_BODY, STATUS, WATCH_EVENT, component_of, list_of},
    },
    registry::Row,
};

/// The methods of forwarded requests, each with its form in operation names.
const STREAMS: &[(&str, &str)] = &[("get", "Get"), ("post", "Post")];
const PROXIES: &[(&str, &str)] = &[
    ("delete", "Delete"),
    ("get", "Get"),
    ("head", "Head"),
    ("options", "Options"),
    ("patch", "Patch"),
    ("post", "Post"),
    ("put", "Put"),
];

/// Adds the paths of a resource; `component` is the schema of its kind.
pub(super) fn add(paths: &mut Map<String, Value>, dialect: Dialect, row: &Row, component: &str) {
    let resource = &*row.resource;
    let profile = if row.has_messages() {
        BUILTIN
    } else {
        PROVIDED
    };
    let base = super::base(&resource.group, &resource.version);
    let mut builtin = Paths {
        writer: Writer { dialect, resource },
        paths,
        profile,
        place: super::collection(&base, resource),
        base,
        component,
    };
    let verbs = resource.rules.verbs();
    builtin.collections(&verbs, &list_of(row, component));
    if verbs.contains(&"get") {
        builtin.object(&verbs);
    }
    for subresource in &resource.subresources {
        builtin.subresource(subresource);
    }
    if verbs.contains(&"watch") {
        builtin.watches();
    }
}

struct Paths<'a> {
    writer: Writer<'a>,
    paths: &'a mut Map<String, Value>,
    profile: Profile,
    base: String,
    place: String,
    component: &'a str,
}

impl Paths<'_> {
    fn add(&mut self, path: String, place: &Place<'_>, verbs: &[Verb<'_>]) {
        self.paths.insert(path, self.writer.item(place, verbs));
    }

    fn resource(&self) -> &Resource {
        self.writer.resource
    }

    fn collections(&mut self, served: &[&str], list: &str) {
        let component = self.component;
        let [status, options] = [STATUS, DELETE_OPTIONS].map(component_of);
        let mut verbs = Vec::new();
        if served.contains(&"list") {
            verbs.push(self.profile.list(list));
            if self.resource().namespaced {
                let path = format!("{}/{}", self.base, self.resource().plural);
                let place = Place::everywhere(self.resource());
                self.add(path, &place, &verbs);
            }
        }
        if served.contains(&"create") {
            verbs.push(self.profile.create(component));
        }
        if served.contains(&"deletecollection") {
            verbs.push(self.profile.delete_all(&status, &options));
        }
        let place = Place::collection(self.resource());
        self.add(self.place.clone(), &place, &verbs);
    }

    fn object(&mut self, served: &[&str]) {
        let component = self.component;
        let rules = &self.resource().rules;
        let [status, options, patch] = [STATUS, DELETE_OPTIONS, PATCH_BODY].map(component_of);
        // Namespaces have a deletion handler of their own, whose response kube-apiserver's documents do not describe.
        let answers_object = rules.delete_returns_object && !rules.two_step_deletion;
        let deleted = if answers_object { component } else { &status };
        let mut verbs = self.reads_and_writes(served, component, &patch);
        if served.contains(&"delete") {
            verbs.push(self.profile.delete(deleted, &options));
        }
        let place = Place::object(self.resource());
        self.add(format!("{}/{{name}}", self.place), &place, &verbs);
    }

    fn reads_and_writes<'a>(
        &self,
        served: &[&str],
        component: &'a str,
        patch: &'a str,
    ) -> Vec<Verb<'a>> {
        let all = [
            ("get", self.profile.read(component)),
            ("update", self.profile.replace(component)),
            ("patch", self.profile.patch(component, patch)),
        ];
        let served = all.into_iter().filter(|(verb, _)| served.contains(verb));
        served.map(|(_, verb)| verb).collect()
    }

    fn subresource(&mut self, subresource: &Subresource) {
        let resource = self.resource();
        let group = subresource.group.unwrap_or(&resource.group);
        let version = subresource.version.unwrap_or(&resource.version);
        let mut place = Place::object(resource).part(subresource.name);
        place.kind = json!({"group": group, "version": version, "kind": *subresource.kind});
        let path = format!("{}/{{name}}/{}", self.place, subresource.name);
        let profile = &self.profile;
        let connect = |methods: &[(&'static str, &'static str)], parameters: &[&'static str]| {
            let methods = methods.iter();
            let verbs = methods.map(|method| profile.connect(*method, parameters));
            verbs.collect::<Vec<_>>()
        };
        let streams = ["container", "stderr", "stdin", "stdout", "tty"];
        let verbs = match subresource.name {
            "attach" => connect(STREAMS, &streams),
            "exec" => {
                let mut parameters = vec!["command"];
                parameters.extend(streams);
                connect(STREAMS, &parameters)
            }
            "portforward" => connect(STREAMS, &["ports"]),
            "proxy" => {
                let verbs = connect(PROXIES, &["path"]);
                let mut behind = place.clone();
                behind.behind = true;
                self.add(format!("{path}/{{path}}"), &behind, &verbs);
                verbs
            }
            "log" => vec![profile.read_log()],
            _ => return self.stored_part(subresource, &place, path),
        };
        self.add(path, &place, &verbs);
    }

    /// Adds a subresource that takes or returns an object.
    fn stored_part(&mut self, subresource: &Subresource, place: &Place<'_>, path: String) {
        let patch = component_of(PATCH_BODY);
        let component = if subresource.kind == self.resource().kind {
            self.component.to_owned()
        } else {
            component_of(&type_of(&place.kind))
        };
        let mut verbs = self.reads_and_writes(subresource.verbs, &component, &patch);
        if subresource.verbs.contains(&"create") {
            verbs.push(self.profile.create(&component));
        }
        self.add(path, place, &verbs);
    }

    /// Adds the paths below `/watch/`, which are still served.
    fn watches(&mut self) {
        let event = component_of(WATCH_EVENT);
        let base = format!("{}/watch", self.base);
        let list = [self.profile.watch("watchlist", &event)];
        let one = [self.profile.watch("watch", &event)];
        let resource = self.resource();
        let collection = super::collection(&base, resource);
        let everywhere = format!("{base}/{}", resource.plural);
        let [all, some, object] = [
            Place::everywhere(resource),
            Place::collection(resource),
            Place::object(resource),
        ];
        if resource.namespaced {
            self.add(everywhere, &all, &list);
        }
        self.add(format!("{collection}/{{name}}"), &object, &one);
        self.add(collection, &some, &list);
    }
}

/// Returns the built-in type of a kind from another group, for example `api.policy.v1.Eviction`.
fn type_of(kind: &Value) -> String {
    let text = |field: &str| kind[field].as_str().unwrap_or_default();
    let group = match text("group").split('.').next() {
        None | Some("") => "core",
        Some(first) => first,
    };
    format!("api.{group}.{}.{}", text("version"), text("kind"))
}
