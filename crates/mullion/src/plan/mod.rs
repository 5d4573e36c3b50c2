//! `mullion plan`: what would be bought for pods, and at what price.
//!
//! So far for recorded cases only: clusters of a line each, with machines from a file. A live cluster and manifests are still to come.

mod answer;
mod case;

use std::path::PathBuf;

use clap::Args;

use crate::{failure::Failure, lines};

const FORM: &str = r#"a line a case: {"case": {"nodePools": [...], "pods": [...], "nodes": [...], ...}}; see docs/plan.md"#;

/// What `mullion plan` is asked.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: mullion plan --catalogue machines.json.gz --cases cases.jsonl > plans.jsonl\n\ndocs/plan.md says what the files hold."
)]
pub(crate) struct PlanArgs {
    /// The machines that can be bought, by node class (JSON, may be gzipped)
    #[arg(long, value_name = "FILE")]
    catalogue: PathBuf,

    /// Clusters with pods that wait, a line each; - is stdin
    #[arg(long, value_name = "FILE")]
    cases: PathBuf,
}

/// Prints the plan for each case, a line each, in order.
///
/// # Errors
/// A file cannot be read, or a case was not answered.
pub(crate) fn run(args: &PlanArgs) -> Result<(), Failure> {
    let catalogue = case::catalogue(&args.catalogue)?;
    lines::answer_all(&args.cases, FORM, || {
        |line: &[u8], text: &mut Vec<u8>| {
            let (mut cluster, request) = case::read(line, &catalogue)?;
            let plan = cluster.plan(&request).map_err(|error| error.to_string())?;
            serde_json::to_writer(text, &answer::of(&plan, &cluster))
                .map_err(|error| error.to_string())
        }
    })
}
