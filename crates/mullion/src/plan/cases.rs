//! Plans for many recorded clusters: one case per line, with instance types from a file.

use std::path::Path;

use super::{
    answer,
    case::{self, CaseError},
};
use crate::{failure::Failure, lines};

const FORM: &str = r#"a line a case: {"case": {"nodePools": [...], "pods": [...], "nodes": [...], ...}}; see docs/plan.md"#;

/// Prints the plan for each case, one line per case, in the order of the input.
///
/// # Errors
/// A file cannot be read, or a case was not answered.
pub(super) fn run(catalogue: &Path, cases: &Path) -> Result<(), Failure> {
    let catalogue = case::catalogue(catalogue)?;
    lines::answer_all(cases, FORM, || {
        |line: &[u8], text: &mut Vec<u8>| {
            let (mut cluster, request) = case::read(line, &catalogue)?;
            let plan = cluster.plan(&request)?;
            serde_json::to_writer(text, &answer::of(&plan, &cluster)).map_err(CaseError::Form)
        }
    })
}
