//! The v2 document (Swagger 2.0) for all resources, as JSON and as protobuf. The part for built-in resources comes first in both, and is
//! copied from the previous document when custom resources are added or removed.

use std::{collections::BTreeSet, ops::Range};

use bytes::Bytes;
use mullion_kinds::request::Lookup;
use mullion_schema::proto::Writer;
use serde_json::{Value, json};

use super::{Dialect, Entries, Schemas, gnostic, groups, info, paths, rows, security, walk};
use crate::registry::{Row, Table};

/// The v2 document in both encodings.
pub(crate) struct V2 {
    /// The document as JSON.
    pub(crate) json: Bytes,
    /// The protobuf message that kubectl and helm read.
    pub(crate) protobuf: Bytes,
    /// The ranges of the JSON with the paths and the definitions of built-in resources.
    texts: [Range<usize>; 2],
    /// The same ranges of the message.
    messages: [Range<usize>; 2],
    /// The names of the built-in definitions.
    names: BTreeSet<String>,
}

/// Generates the document; `before` is the document of the previous table.
pub(crate) fn v2(table: &Table, lookup: &dyn Lookup, before: Option<&V2>) -> V2 {
    let mut writing = match before {
        Some(before) => Writing::after(before),
        None => Writing::of_builtins(table, lookup),
    };
    let fixed = writing.lengths();
    let defined: Vec<&Row> = rows(table).filter(|row| row.is_defined()).collect();
    let schemas = walk(Dialect::V2, lookup, &defined, |path, item| {
        writing.path(path, item);
    });
    for (name, schema) in &schemas {
        // Custom resources refer to built-in types such as ObjectMeta, which the copied part has already.
        if !writing.names.contains(name) {
            writing.definition(name, schema);
        }
    }
    writing.done(fixed)
}

/// A document under construction, in both encodings.
struct Writing {
    paths: Entries,
    definitions: Entries,
    message: gnostic::v2::Document,
    names: BTreeSet<String>,
}

impl Writing {
    fn of_builtins(table: &Table, lookup: &dyn Lookup) -> Self {
        let mut writing = Writing {
            paths: Entries::default(),
            definitions: Entries::default(),
            message: gnostic::v2::Document::default(),
            names: BTreeSet::new(),
        };
        let mut around = Schemas::new(Dialect::V2, lookup);
        for around_it in paths::non_resource::all(Dialect::V2, &groups(table)) {
            around.reach(&around_it.item);
            writing.path(&around_it.path, &around_it.item);
        }
        let builtins: Vec<&Row> = rows(table).filter(|row| !row.is_defined()).collect();
        let mut schemas = walk(Dialect::V2, lookup, &builtins, |path, item| {
            writing.path(path, item);
        });
        for (name, schema) in around.finish() {
            schemas.entry(name).or_insert(schema);
        }
        for (name, schema) in &schemas {
            writing.definition(name, schema);
        }
        writing.names = schemas.into_iter().map(|(name, _)| name).collect();
        writing
    }

    fn after(before: &V2) -> Self {
        let text = |range: &Range<usize>| {
            let text = String::from_utf8_lossy(&before.json[range.clone()]);
            Entries(text.into_owned())
        };
        let message =
            |range: &Range<usize>| Writer::starting_with(&before.protobuf[range.clone()], 0);
        let [paths, definitions] = &before.texts;
        let [path_messages, definition_messages] = &before.messages;
        Writing {
            paths: text(paths),
            definitions: text(definitions),
            message: gnostic::v2::Document {
                paths: message(path_messages),
                definitions: message(definition_messages),
            },
            names: before.names.clone(),
        }
    }

    fn path(&mut self, path: &str, item: &Value) {
        self.paths.push(path, item);
        self.message.path(path, item);
    }

    fn definition(&mut self, name: &str, schema: &Value) {
        self.definitions.push(name, schema);
        self.message.definition(name, schema);
    }

    /// Returns the current lengths of the four parts.
    fn lengths(&self) -> [usize; 4] {
        [
            self.paths.0.len(),
            self.definitions.0.len(),
            self.message.paths.len(),
            self.message.definitions.len(),
        ]
    }

    /// Finishes the document. `fixed` holds the lengths of the parts for built-in resources.
    fn done(self, fixed: [usize; 4]) -> V2 {
        let (info, security) = (info(), security());
        let (protobuf, [path_messages, definition_messages]) =
            self.message.finish(&info, &security);
        let needed: Vec<Value> = security
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, _)| json!({name: []}))
            .collect();
        let mut json = format!(r#"{{"swagger":"2.0","info":{info},"paths":"#);
        let paths = json.len();
        json.push_str(&self.paths.done());
        json.push_str(r#","definitions":"#);
        let definitions = json.len();
        json.push_str(&self.definitions.done());
        let needed = Value::from(needed);
        json.push_str(&format!(
            r#","security":{needed},"securityDefinitions":{security}}}"#
        ));
        let range = |start: usize, length: usize| start..start + length;
        V2 {
            json: json.into(),
            protobuf: protobuf.into(),
            texts: [range(paths, fixed[0]), range(definitions, fixed[1])],
            messages: [
                range(path_messages, fixed[2]),
                range(definition_messages, fixed[3]),
            ],
            names: self.names,
        }
    }
}
