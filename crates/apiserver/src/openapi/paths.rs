//! Paths: which kind is behind a path, which verbs it has, which parameters they take. Those of custom resources are in [`custom`].

pub(super) mod custom;
mod parameters;

use serde_json::{Map, Value, json};

use super::{Dialect, reference};
use crate::{
    kinds::{Resource, SubresourceHandler},
    registry::Row,
};

/// The parameters of each verb in the query.
const LIST: &[&str] = &[
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
    "watch",
];
const WRITE: &[&str] = &["dryRun", "fieldManager", "fieldValidation"];
const PATCH: &[&str] = &["dryRun", "fieldManager", "fieldValidation", "force"];
const DELETE: &[&str] = &[
    "dryRun",
    "gracePeriodSeconds",
    "orphanDependents",
    "propagationPolicy",
];

/// Clients look here for what they may send: kubectl's apply sends strategic merge patches only where they are told.
const PATCHES: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

/// Adds the paths of a row; `component` is the schema of its kind.
pub(super) fn add(paths: &mut Map<String, Value>, dialect: Dialect, row: &Row, component: &str) {
    let resource = &row.resource;
    if row.is_defined() {
        return custom::add(paths, dialect, row, component);
    }
    let base = if resource.group.is_empty() {
        format!("/api/{}", resource.version)
    } else {
        format!("/apis/{}/{}", resource.group, resource.version)
    };
    let place = if resource.namespaced {
        format!("{base}/namespaces/{{namespace}}")
    } else {
        base.clone()
    };
    let writer = Writer {
        dialect,
        resource,
        component,
    };
    let mut collection = Map::new();
    if !resource.rules.transient {
        collection.insert(
            "get".into(),
            writer.operation("list", "get", LIST, &format!("{component}List")),
        );
    }
    if !resource.rules.read_only {
        collection.insert(
            "post".into(),
            writer.operation("create", "post", WRITE, component),
        );
    }
    paths.insert(
        format!("{place}/{}", resource.plural),
        writer.item(collection, false),
    );
    if resource.rules.transient {
        return;
    }
    let one = format!("{place}/{}/{{name}}", resource.plural);
    let mut verbs = writer.reads_and_writes();
    if resource.rules.read_only {
        verbs.retain(|verb, _| verb == "get");
    } else {
        verbs.insert(
            "delete".into(),
            writer.operation("delete", "delete", DELETE, component),
        );
    }
    paths.insert(one.clone(), writer.item(verbs, true));
    for subresource in &resource.subresources {
        if matches!(subresource.handler, SubresourceHandler::Status(_)) {
            paths.insert(
                format!("{one}/{}", subresource.name),
                writer.item(writer.reads_and_writes(), true),
            );
        }
    }
    if resource.namespaced {
        let mut all = Map::new();
        all.insert(
            "get".into(),
            writer.operation("list", "get", LIST, &format!("{component}List")),
        );
        paths.insert(format!("{base}/{}", resource.plural), json!(all));
    }
}

struct Writer<'a> {
    dialect: Dialect,
    resource: &'a Resource,
    component: &'a str,
}

impl Writer<'_> {
    fn reads_and_writes(&self) -> Map<String, Value> {
        let mut verbs = Map::new();
        verbs.insert(
            "get".into(),
            self.operation("get", "get", &[], self.component),
        );
        verbs.insert(
            "put".into(),
            self.operation("put", "put", WRITE, self.component),
        );
        verbs.insert(
            "patch".into(),
            self.operation("patch", "patch", PATCH, self.component),
        );
        verbs
    }

    fn item(&self, mut verbs: Map<String, Value>, named: bool) -> Value {
        let mut parameters = Vec::new();
        if named {
            parameters.push(parameter(self.dialect, "path", "name"));
        }
        if self.resource.namespaced {
            parameters.push(parameter(self.dialect, "path", "namespace"));
        }
        if !parameters.is_empty() {
            verbs.insert("parameters".into(), parameters.into());
        }
        verbs.into()
    }

    fn operation(&self, action: &str, method: &str, parameters: &[&str], answer: &str) -> Value {
        let resource = self.resource;
        let mut parameters: Vec<Value> = parameters
            .iter()
            .map(|name| parameter(self.dialect, "query", name))
            .collect();
        let schema = reference(self.dialect, answer);
        let response = match self.dialect {
            Dialect::V2 => json!({"description": "OK", "schema": schema}),
            Dialect::V3 => {
                json!({"description": "OK", "content": {"application/json": {"schema": schema}}})
            }
        };
        let group = if resource.group.is_empty() {
            "core"
        } else {
            &resource.group
        };
        let mut operation = json!({
            "operationId": operation_id(action, resource),
            "tags": [format!("{}_{}", group.split('.').next().unwrap_or_default(), resource.version)],
            "responses": {"200": response, "401": {"description": "Unauthorized"}},
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": kind_of(resource),
        });
        if matches!(method, "post" | "put" | "patch") {
            let (medias, body): (&[&str], _) = match method {
                "patch" => (PATCHES, custom::component_of(custom::PATCH_BODY)),
                _ => (&["*/*"], self.component.to_owned()),
            };
            let schema = reference(self.dialect, &body);
            match self.dialect {
                Dialect::V2 => {
                    operation["consumes"] = json!(medias);
                    parameters.insert(
                        0,
                        json!({"name": "body", "in": "body", "required": true, "schema": schema}),
                    );
                }
                Dialect::V3 => {
                    let content = medias
                        .iter()
                        .map(|media| ((*media).to_owned(), json!({"schema": schema})));
                    let content: Map<String, Value> = content.collect();
                    operation["requestBody"] = json!({"content": content, "required": true});
                }
            }
        }
        if !parameters.is_empty() {
            operation["parameters"] = parameters.into();
        }
        operation
    }
}

fn kind_of(resource: &Resource) -> Value {
    json!({"group": *resource.group, "version": *resource.version, "kind": *resource.kind})
}

fn parameter(dialect: Dialect, place: &str, name: &str) -> Value {
    let kind = match name {
        "limit" | "timeoutSeconds" | "gracePeriodSeconds" => "integer",
        "watch"
        | "force"
        | "allowWatchBookmarks"
        | "sendInitialEvents"
        | "orphanDependents"
        | "ignoreStoreReadErrorWithClusterBreakingPotential" => "boolean",
        _ => "string",
    };
    let mut parameter = json!({"name": name, "in": place});
    match dialect {
        Dialect::V2 => parameter["type"] = kind.into(),
        Dialect::V3 => parameter["schema"] = json!({"type": kind}),
    }
    if place == "path" {
        parameter["required"] = true.into();
    }
    parameter
}

/// A name for an operation that no other has: `patchAppsV1NamespacedDeployment`.
fn operation_id(action: &str, resource: &Resource) -> String {
    let group = if resource.group.is_empty() {
        "core"
    } else {
        resource.group.split('.').next().unwrap_or_default()
    };
    let scope = if resource.namespaced {
        "Namespaced"
    } else {
        ""
    };
    format!(
        "{action}{}{}{scope}{}",
        capital(group),
        capital(&resource.version),
        resource.kind
    )
}

fn capital(text: &str) -> String {
    let mut characters = text.chars();
    characters
        .next()
        .map(|first| first.to_ascii_uppercase())
        .into_iter()
        .chain(characters)
        .collect()
}
