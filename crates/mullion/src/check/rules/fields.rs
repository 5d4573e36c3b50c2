//! Checks that objects have only fields that their kinds have, and kinds that there are: MUL080 and MUL081.

use super::Context;
use crate::check::{
    finding::Findings, path::Path, problem::Problem, schemas::Reading, subject::Object,
};

/// Checks an object of a file. Objects of a cluster have been read by its API server, which may be of a later version than the schemas here.
pub(super) fn check(context: &Context<'_>, index: usize, object: &Object, found: &mut Findings) {
    if object.is_live() {
        return;
    }
    match context.schemas.read(object) {
        Reading::Read(fields) => {
            for field in fields {
                let problem = Problem::UnknownField {
                    name: field.name,
                    near: field.near,
                };
                found.add("MUL080", index, field.path, problem);
            }
        }
        Reading::Misfit(why) => {
            let problem = Problem::Misfit {
                kind: object.kind().to_owned(),
                version: object.api_version().to_owned(),
                why,
            };
            found.add("MUL080", index, Path::default(), problem);
        }
        Reading::NoSuchKind { near } => {
            let problem = Problem::NoSuchKind {
                kind: object.kind().to_owned(),
                version: object.api_version().to_owned(),
                near,
            };
            found.add("MUL081", index, Path::of(&["kind"]), problem);
        }
        // Said once for all objects of the kind.
        Reading::Unknown { .. } => {}
    }
}
