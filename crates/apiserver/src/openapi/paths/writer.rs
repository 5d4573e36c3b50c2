//! Writes a path item with its operations: parameters, bodies, responses, and a unique name for each operation.

use mullion_kinds::Resource;
use serde_json::{Map, Value, json};

use super::{
    names::{self, article, capital, identifier},
    parameters,
    verbs::{Content, Verb},
};
use crate::openapi::{Dialect, reference};

/// The kind of path within a resource.
#[derive(Clone)]
pub(super) struct Place<'a> {
    /// Whether it is the collection across all namespaces.
    pub(super) all: bool,
    /// Whether it is a single object.
    pub(super) named: bool,
    /// Whether it is a path behind `proxy`.
    pub(super) behind: bool,
    pub(super) subresource: &'a str,
    /// The group, version and kind of the objects there.
    pub(super) kind: Value,
}

impl<'a> Place<'a> {
    /// Returns the path of a resource's collection.
    pub(super) fn collection(resource: &Resource) -> Self {
        Place {
            all: false,
            named: false,
            behind: false,
            subresource: "",
            kind: json!({"group": *resource.group, "version": *resource.version, "kind": *resource.kind}),
        }
    }

    /// Returns the path of the collection across all namespaces.
    pub(super) fn everywhere(resource: &Resource) -> Self {
        Place {
            all: true,
            ..Place::collection(resource)
        }
    }

    /// Returns the path of a single object.
    pub(super) fn object(resource: &Resource) -> Self {
        Place {
            named: true,
            ..Place::collection(resource)
        }
    }

    /// Returns the path of a subresource.
    pub(super) fn part(&self, subresource: &'a str) -> Self {
        Place {
            subresource,
            ..self.clone()
        }
    }
}

/// Writes the path items of a resource.
pub(super) struct Writer<'a> {
    pub(super) dialect: Dialect,
    pub(super) resource: &'a Resource,
}

impl Writer<'_> {
    /// Returns a path item. Parameters that all operations share are listed once for the path.
    pub(super) fn item(&self, place: &Place<'_>, verbs: &[Verb<'_>]) -> Value {
        let is_common = |name: &str| verbs.iter().all(|verb| verb.parameters.contains(&name));
        let mut common = Vec::new();
        if verbs.iter().all(|verb| verb.action != "connect") {
            common.push(("query", "pretty"));
        }
        if place.named {
            common.push(("path", "name"));
        }
        if self.resource.namespaced && !place.all {
            common.push(("path", "namespace"));
        }
        if place.behind {
            common.push(("path", "path"));
        }
        let shared = verbs.first().map_or(&[][..], |verb| &verb.parameters);
        let shared = shared.iter().filter(|name| is_common(name));
        common.extend(shared.map(|name| ("query", *name)));
        let mut item = Map::new();
        for verb in verbs {
            let own = verb.parameters.iter().filter(|name| !is_common(name));
            let own = own.map(|name| ("query", *name)).collect();
            item.insert(verb.method.into(), self.operation(place, verb, own));
        }
        item.insert("parameters".into(), self.parameters(common).into());
        item.into()
    }

    /// Writes the parameters sorted by name, then by location.
    fn parameters(&self, mut parameters: Vec<(&str, &str)>) -> Vec<Value> {
        parameters.sort_unstable_by_key(|(place, name)| (*name, *place));
        let written = parameters.into_iter();
        let written = written
            .map(|(place, name)| parameters::write(self.dialect, place, name, self.resource));
        written.collect()
    }

    fn operation(&self, place: &Place<'_>, verb: &Verb<'_>, own: Vec<(&str, &str)>) -> Value {
        let resource = self.resource;
        let mut operation = json!({
            "description": self.description(place, verb),
            "operationId": self.name(place, verb),
            "tags": [names::tag(&resource.group, &resource.version)],
            "responses": answers(self.dialect, verb.answer, verb.produces, verb.codes),
            "x-kubernetes-action": verb.action,
            "x-kubernetes-group-version-kind": place.kind,
        });
        let mut parameters = self.parameters(own);
        let body = verb.body.map(Content::Of);
        // Only the body of a deletion, its options, is optional.
        let needed = verb.method != "delete";
        if self.dialect == Dialect::V2 {
            if let Some(body) = body {
                let schema = schema(self.dialect, body);
                let mut body = json!({"name": "body", "in": "body", "schema": schema});
                if needed {
                    body["required"] = true.into();
                }
                parameters.insert(0, body);
            }
            operation["consumes"] = json!(verb.consumes);
            operation["produces"] = json!(verb.produces);
            operation["schemes"] = json!(["https"]);
        } else if let Some(body) = body {
            let mut body = json!({"content": content(self.dialect, body, verb.consumes)});
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

    /// Returns the operationId, for example `replaceExampleComV1NamespacedThingScale`.
    fn name(&self, place: &Place<'_>, verb: &Verb<'_>) -> String {
        let scope = match (self.resource.namespaced, place.all) {
            (true, false) => "Namespaced",
            _ => "",
        };
        let end = match (verb.action, place.all, place.behind) {
            ("watchlist", true, _) => "ListForAllNamespaces",
            ("watchlist", false, _) => "List",
            (_, true, _) => "ForAllNamespaces",
            (_, _, true) => "WithPath",
            _ => "",
        };
        let group = capital(&names::of_group(&self.resource.group));
        let version = capital(&identifier(&self.resource.version));
        let kind = capital(&identifier(&self.resource.kind));
        let (word, infix, part) = (verb.word, verb.infix, capital(place.subresource));
        format!("{word}{group}{version}{infix}{scope}{kind}{part}{end}")
    }

    fn description(&self, place: &Place<'_>, verb: &Verb<'_>) -> String {
        let kind = &self.resource.kind;
        let part = match place.subresource {
            "" => String::new(),
            part => format!(" {part} of"),
        };
        match verb.action {
            "list"
                if verb.produces.contains(&"application/json;stream=watch")
                    && !self.resource.rules.read_only =>
            {
                format!("list or watch objects of kind {kind}")
            }
            "list" => format!("list objects of kind {kind}"),
            "watch" => format!(
                "watch one object of kind {kind}; deprecated: watch the list with a fieldSelector"
            ),
            "watchlist" => format!(
                "watch objects of kind {kind}; deprecated: list them with the watch parameter"
            ),
            "connect" => format!(
                "connect {} requests to{part} {kind}",
                verb.infix.to_ascii_uppercase()
            ),
            "patch" => format!("partially update{part} the specified {kind}"),
            "deletecollection" => format!("delete collection of {kind}"),
            "post" | "delete" => format!("{}{part}{}{kind}", verb.word, article(kind)),
            _ => format!("{}{part} the specified {kind}", verb.word),
        }
    }
}

/// Returns the responses of an operation: 200 and `codes` with the same content, and 401 without any.
pub(super) fn answers(
    dialect: Dialect,
    answer: Content<'_>,
    medias: &[&str],
    codes: &[&str],
) -> Value {
    let told = |description: &str| {
        let mut told = json!({"description": description});
        match dialect {
            Dialect::V2 => told["schema"] = schema(dialect, answer),
            Dialect::V3 => told["content"] = content(dialect, answer, medias),
        }
        told
    };
    let mut answers = json!({"200": told("OK"), "401": {"description": "Unauthorized"}});
    for code in codes {
        let description = match *code {
            "201" => "Created",
            _ => "Accepted",
        };
        answers[*code] = told(description);
    }
    answers
}

fn content(dialect: Dialect, content: Content<'_>, medias: &[&str]) -> Value {
    let schema = json!({"schema": schema(dialect, content)});
    let medias = medias
        .iter()
        .map(|media| ((*media).to_owned(), schema.clone()));
    Value::Object(medias.collect())
}

fn schema(dialect: Dialect, content: Content<'_>) -> Value {
    match content {
        Content::Of(component) => reference(dialect, component),
        Content::Text => json!({"type": "string"}),
    }
}
