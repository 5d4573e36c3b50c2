//! The paths of custom resources, complete: every verb with its parameters, bodies, answers and a name of its own.
//!
//! Source: k8s.io/apiextensions-apiserver: pkg/controller/openapi/builder; names of operations: k8s.io/apiserver: pkg/endpoints/openapi.

use serde_json::{Map, Value, json};

use super::{LIST, PATCH, WRITE, capital, kind_of, parameters};
use crate::{
    kinds::{Resource, SubresourceHandler},
    openapi::{Dialect, reference},
    registry::Row,
};

/// A read can ask for a version; the answer is of that version or a newer one.
const READ: &[&str] = &["resourceVersion"];
const DELETE: &[&str] = &[
    "dryRun",
    "gracePeriodSeconds",
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "orphanDependents",
    "propagationPolicy",
];
/// What every operation takes.
const EVERYWHERE: &str = "pretty";
const BODIES: &[&str] = &["application/json", "application/yaml"];
const PATCHES: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/apply-patch+yaml",
];

/// The components that paths of custom resources speak of beside their own.
pub(in crate::openapi) const STATUS: &str = "apimachinery.pkg.apis.meta.v1.Status";
pub(in crate::openapi) const DELETE_OPTIONS: &str = "apimachinery.pkg.apis.meta.v1.DeleteOptions";
pub(in crate::openapi) const SCALE: &str = "api.autoscaling.v1.Scale";
pub(in crate::openapi) const PATCH_BODY: &str = "apimachinery.pkg.apis.meta.v1.Patch";

/// One operation.
struct Verb<'a> {
    method: &'static str,
    /// As `x-kubernetes-action` has it.
    action: &'static str,
    /// What its name begins with.
    word: &'static str,
    parameters: &'static [&'static str],
    /// The component of its answer.
    answer: &'a str,
    /// The component of its body.
    body: Option<&'a str>,
}

/// Adds the paths of a custom resource; `component` is the schema of its kind.
pub(super) fn add(paths: &mut Map<String, Value>, dialect: Dialect, row: &Row, component: &str) {
    let resource = &row.resource;
    let base = format!("/apis/{}/{}", resource.group, resource.version);
    let (list, plural) = (list_of(row, component), &resource.plural);
    let writer = Writer { dialect, resource };
    let lists = Verb {
        method: "get",
        action: "list",
        word: "list",
        parameters: LIST,
        answer: &list,
        body: None,
    };
    let place = if resource.namespaced {
        let everywhere = Place {
            all: true,
            named: false,
            subresource: "",
        };
        let item = writer.item(&everywhere, std::slice::from_ref(&lists));
        paths.insert(format!("{base}/{plural}"), item);
        format!("{base}/namespaces/{{namespace}}/{plural}")
    } else {
        format!("{base}/{plural}")
    };
    let status = component_of(STATUS);
    let collection = [
        lists,
        Verb {
            method: "post",
            action: "post",
            word: "create",
            parameters: WRITE,
            answer: component,
            body: Some(component),
        },
        Verb {
            method: "delete",
            action: "deletecollection",
            word: "deletecollection",
            parameters: LIST,
            answer: &status,
            body: None,
        },
    ];
    let mut at = Place {
        all: false,
        named: false,
        subresource: "",
    };
    paths.insert(place.clone(), writer.item(&at, &collection));
    at.named = true;
    let (options, patch, scale) = (
        component_of(DELETE_OPTIONS),
        component_of(PATCH_BODY),
        component_of(SCALE),
    );
    let mut verbs = Vec::from(reads_and_writes(component, &patch));
    verbs.push(Verb {
        method: "delete",
        action: "delete",
        word: "delete",
        parameters: DELETE,
        answer: &status,
        body: Some(&options),
    });
    paths.insert(format!("{place}/{{name}}"), writer.item(&at, &verbs));
    for subresource in &resource.subresources {
        let shown = match subresource.handler {
            SubresourceHandler::Status(_) => component,
            SubresourceHandler::Scale { .. } => &scale,
            SubresourceHandler::Named | SubresourceHandler::Part(_) => continue,
        };
        at.subresource = subresource.name;
        let item = writer.item(&at, &reads_and_writes(shown, &patch));
        paths.insert(format!("{place}/{{name}}/{}", subresource.name), item);
    }
}

/// The component of a kind's list, which is called as the definition says.
pub(in crate::openapi) fn list_of(row: &Row, component: &str) -> String {
    let package = component
        .rsplit_once('.')
        .map_or("", |(package, _)| package);
    format!("{package}.{}", row.list_kind())
}

/// The name of a component of the table's types.
pub(in crate::openapi) fn component_of(name: &str) -> String {
    format!("io.k8s.{name}")
}

fn reads_and_writes<'a>(component: &'a str, patch: &'a str) -> [Verb<'a>; 3] {
    [
        Verb {
            method: "get",
            action: "get",
            word: "read",
            parameters: READ,
            answer: component,
            body: None,
        },
        Verb {
            method: "put",
            action: "put",
            word: "replace",
            parameters: WRITE,
            answer: component,
            body: Some(component),
        },
        Verb {
            method: "patch",
            action: "patch",
            word: "patch",
            parameters: PATCH,
            answer: component,
            body: Some(patch),
        },
    ]
}

/// Which of a resource's paths it is.
struct Place {
    /// The collection of all namespaces.
    all: bool,
    /// One object.
    named: bool,
    subresource: &'static str,
}

struct Writer<'a> {
    dialect: Dialect,
    resource: &'a Resource,
}

impl Writer<'_> {
    /// A path with its operations. What all of them take stands beside them.
    fn item(&self, place: &Place, verbs: &[Verb<'_>]) -> Value {
        let is_common = |name: &str| verbs.iter().all(|verb| verb.parameters.contains(&name));
        let mut common = vec![self.parameter("query", EVERYWHERE)];
        if place.named {
            common.push(self.parameter("path", "name"));
        }
        if self.resource.namespaced && !place.all {
            common.push(self.parameter("path", "namespace"));
        }
        let shared = verbs.first().map_or(&[][..], |verb| verb.parameters);
        let shared = shared.iter().filter(|name| is_common(name));
        common.extend(shared.map(|name| self.parameter("query", name)));
        common.sort_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str()));
        let mut item = Map::new();
        for verb in verbs {
            let own = verb.parameters.iter().filter(|name| !is_common(name));
            let own = own.map(|name| self.parameter("query", name)).collect();
            item.insert(verb.method.into(), self.operation(place, verb, own));
        }
        item.insert("parameters".into(), common.into());
        item.into()
    }

    fn operation(&self, place: &Place, verb: &Verb<'_>, mut parameters: Vec<Value>) -> Value {
        let group = identifier(self.resource.group.trim_end_matches(".k8s.io"));
        let version = identifier(&self.resource.version);
        let mut operation = json!({
            "description": self.description(place, verb),
            "operationId": self.name(place, verb, &group, &version),
            "tags": [format!("{group}_{version}")],
            "responses": self.answers(verb),
            "x-kubernetes-action": verb.action,
            "x-kubernetes-group-version-kind": kind_of(self.resource),
        });
        let medias = if verb.method == "patch" {
            PATCHES
        } else {
            BODIES
        };
        // Only the options of a deletion may be left out.
        let needed = verb.method != "delete";
        if self.dialect == Dialect::V2 {
            if let Some(body) = verb.body {
                let schema = reference(self.dialect, body);
                let mut body = json!({"name": "body", "in": "body", "schema": schema});
                if needed {
                    body["required"] = true.into();
                }
                parameters.insert(0, body);
            }
            operation["consumes"] = json!(medias);
            operation["produces"] = json!(BODIES);
            operation["schemes"] = json!(["https"]);
        } else if let Some(body) = verb.body {
            let mut body = json!({"content": self.content(medias, body)});
            if needed {
                body["required"] = true.into();
            }
            operation["requestBody"] = body;
        }
        if !parameters.is_empty() {
            operation["parameters"] = parameters.into();
        }
        operation
    }

    fn answers(&self, verb: &Verb<'_>) -> Value {
        let answer = |description: &str| {
            let mut answer = json!({"description": description});
            match self.dialect {
                Dialect::V2 => answer["schema"] = reference(self.dialect, verb.answer),
                Dialect::V3 => answer["content"] = self.content(BODIES, verb.answer),
            }
            answer
        };
        let mut answers = json!({"200": answer("OK"), "401": {"description": "Unauthorized"}});
        if matches!(verb.action, "post" | "put") {
            answers["201"] = answer("Created");
        }
        if matches!(verb.action, "post" | "delete") {
            answers["202"] = answer("Accepted");
        }
        answers
    }

    fn content(&self, medias: &[&str], component: &str) -> Value {
        let schema = json!({"schema": reference(self.dialect, component)});
        let medias = medias
            .iter()
            .map(|media| ((*media).to_owned(), schema.clone()));
        Value::Object(medias.collect())
    }

    fn parameter(&self, place: &str, name: &str) -> Value {
        let mut parameter = super::parameter(self.dialect, place, name);
        let kind = &self.resource.kind;
        parameter["description"] = match (place, name) {
            ("path", "name") => format!("Name of the {kind}.").into(),
            _ => parameters::description(name).into(),
        };
        match self.dialect {
            Dialect::V2 => parameter["uniqueItems"] = true.into(),
            Dialect::V3 => parameter["schema"]["uniqueItems"] = true.into(),
        }
        parameter
    }

    /// `replaceExampleComV1NamespacedThingScale`.
    fn name(&self, place: &Place, verb: &Verb<'_>, group: &str, version: &str) -> String {
        let scope = match (self.resource.namespaced, place.all) {
            (true, false) => "Namespaced",
            _ => "",
        };
        let end = if place.all { "ForAllNamespaces" } else { "" };
        let (group, version) = (capital(group), capital(version));
        let kind = capital(&identifier(&self.resource.kind));
        let part = capital(place.subresource);
        format!("{}{group}{version}{scope}{kind}{part}{end}", verb.word)
    }

    fn description(&self, place: &Place, verb: &Verb<'_>) -> String {
        let kind = &self.resource.kind;
        let part = match place.subresource {
            "" => String::new(),
            part => format!(" {part} of"),
        };
        match verb.word {
            "list" => format!("list objects of kind {kind}"),
            "patch" => format!("partially update{part} the specified {kind}"),
            "deletecollection" => format!("delete collection of {kind}"),
            "create" | "delete" => format!("{}{}{kind}", verb.word, article(kind)),
            word => format!("{word}{part} the specified {kind}"),
        }
    }
}

/// What stands before one of a kind; nothing before what sounds like several.
fn article(kind: &str) -> &'static str {
    if kind.ends_with('s') && !kind.ends_with("ss") {
        return " ";
    }
    match kind.chars().next().map(|first| first.to_ascii_lowercase()) {
        Some('a' | 'e' | 'i' | 'o' | 'u') => " an ",
        _ => " a ",
    }
}

/// The letters and digits of a name; what follows anything else begins with a capital.
fn identifier(text: &str) -> String {
    let mut name = String::with_capacity(text.len());
    let mut raised = false;
    for (at, letter) in text.chars().enumerate() {
        if letter.is_alphabetic() || letter == '_' || (at != 0 && letter.is_numeric()) {
            match raised {
                true => name.extend(letter.to_uppercase()),
                false => name.push(letter),
            }
            raised = false;
        } else {
            raised = true;
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_groups_become_identifiers() {
        assert_eq!(identifier("stable.example-1.com"), "stableExample1Com");
        assert_eq!(identifier("1x"), "X");
    }

    #[test]
    fn kinds_have_their_articles() {
        assert_eq!(
            [
                article("Foo"),
                article("Api"),
                article("Things"),
                article("Mass")
            ],
            [" a ", " an ", " ", " a "]
        );
    }
}
