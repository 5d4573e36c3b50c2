//! Implements `mullion plan`: which nodes would be bought for pods, which pods go where, and at what price, before anything is bought.
//!
//! [`input`] reads the cluster and the manifests, as `mullion why` does, and [`quotas`] says which pods are not created; [`question`] asks
//! the engine; [`report`] turns its answer into data and [`table`] into text for people. [`whatif`] changes the question, and [`compare`]
//! compares two plans; [`consolidate`] says which nodes should be removed. [`cases`] answers many recorded clusters at once.

mod answer;
mod bound;
mod candidates;
mod case;
mod cases;
mod columns;
mod compare;
mod consolidate;
mod drain;
mod idle;
mod input;
mod options;
mod price;
mod question;
pub(crate) mod quotas;
pub(crate) mod refusals;
mod replicas;
mod report;
mod scale;
pub(crate) mod standing;
mod table;
mod whatif;

use jiff::Timestamp;
use serde::Serialize;

pub(crate) use options::PlanArgs;

use crate::{failure::Failure, out, why::state::State};
use bound::Bound;
use candidates::Objects;
use compare::Comparison;
use input::Input;
use options::Format;
use question::Question;
use report::{CurrentPrice, Report};

/// Runs the command. Returns true if every pod gets a place.
///
/// # Errors
/// Something cannot be read, or contradicts itself.
pub(crate) async fn run(args: PlanArgs) -> Result<bool, Failure> {
    if let (Some(catalogue), Some(cases)) = (&args.catalogue, &args.cases) {
        return cases::run(catalogue, cases).map(|()| true);
    }
    let keeps_whole = args.consolidate || !args.remove_node.is_empty();
    let mut input = Input::read(&args, keeps_whole).await?;
    if args.bound_only {
        let report = plan(&mut input, &args).await?;
        let bound = Bound::of(&report);
        print(&bound, args.output, |_, _| bound.text())?;
        return Ok(report.all_placed());
    }
    if args.consolidate {
        let changes = args.what_if.apply(&mut input, args.namespace.as_deref());
        let changes = changes.await?;
        let now = Timestamp::now();
        let answer = consolidate::ask(&mut input.source.state, changes, now).await?;
        print(&answer, args.output, |colours, width| {
            answer.text(colours, width)
        })?;
        return Ok(true);
    }
    // The plan for the cluster as it is comes first, because the changes alter the input for good.
    let now = plan(&mut input, &args).await?;
    let changes = args
        .what_if
        .apply(&mut input, args.namespace.as_deref())
        .await?;
    let last = if changes.is_empty() {
        let text = |colours, width| table::text(&now, &args, colours, width);
        print(&now, args.output, text)?;
        now
    } else {
        let then = plan(&mut input, &args).await?;
        let both = Comparison::of(changes, now, then);
        let text = |colours, width| both.text(&args, colours, width);
        print(&both, args.output, text)?;
        both.then
    };
    no_pools(&last, &args);
    Ok(last.all_placed())
}

/// Asks for a plan and reports on it.
async fn plan(input: &mut Input, args: &PlanArgs) -> Result<Report, Failure> {
    let (coming, refused) = input.admitted();
    let mut question = Question::of(&input.source.state, &coming).await?;
    question.refused = refused;
    drop(coming);
    let remarks = input.remarks();
    let state = &mut input.source.state;
    for node in &args.remove_node {
        remove(node, &mut question, state)?;
    }
    question.remarks.extend(remarks);
    // The bound is computed before the search for a cheaper plan, so that search can be skipped.
    question.request.effort = args.effort.or(args.bound_only.then_some(0));
    let before = CurrentPrice::of(state.nodes(), &question);
    question
        .ask(&mut state.cluster, |plan, cluster| {
            let idle_pools = idle::reasons(&input.added_pools, plan, &question, cluster)?;
            let report = report::of(plan, &question, cluster, &before)?;
            Ok(Report {
                idle_pools,
                ..report
            })
        })
        .map_err(Failure::input)
}

/// Removes a node from the question, and adds a remark if its pods would forbid the removal now.
fn remove(node: &str, question: &mut Question, state: &State) -> Result<(), Failure> {
    if state.cluster.node(node).is_none() {
        let nodes: Vec<String> = state.nodes().map(|own| own.name.clone()).collect();
        let failure = Failure::input(format!("--remove-node {node}: there is no such node"));
        return Err(if nodes.is_empty() {
            failure.hint("there are no nodes at all")
        } else {
            failure.hint(format!("there are {}", refusals::some_of(&nodes)))
        });
    }
    if question.goes(node) {
        let remark = format!("{node} is going already");
        if !question.remarks.contains(&remark) {
            question.remarks.push(remark);
        }
        return Ok(());
    }
    let held = Objects::of(state, Timestamp::now())?.held_by(node);
    question.remove(node, state);
    question
        .remarks
        .extend(held.map(|why| format!("{node} would not be let go now: {why}")));
    Ok(())
}

/// Prints an answer in the requested format. `text` makes the text for people; its arguments are whether to use colours, and the terminal's
/// width.
fn print(
    answer: &impl Serialize,
    format: Format,
    text: impl FnOnce(bool, Option<usize>) -> String,
) -> Result<(), Failure> {
    match format {
        Format::Table => out::line(&text(out::colours(), out::width())),
        Format::Json => out::line(&serde_json::to_string_pretty(answer).map_err(Failure::run)?),
        Format::Yaml => out::whole(&serde_saphyr::to_string(answer).map_err(Failure::run)?),
    }
    Ok(())
}

/// Prints a note that says what to do if pods have no place because there is no NodePool.
fn no_pools(report: &Report, args: &PlanArgs) {
    let none = report.open_pools == 0 && report.closed_pools.is_empty();
    if report.unplaced.is_empty() || !none {
        return;
    }
    let list = "kubectl get nodepools,nodeclaims,ec2nodeclasses adds them";
    out::note(&match (&args.state, args.offline) {
        (Some(_), _) => format!("the state has no NodePools, so nothing is bought: {list}, --default-pools takes those of `mullion up`"),
        (None, true) => "the files have no NodePools, so nothing is bought: add theirs with -f, --default-pools takes those of `mullion up`".to_owned(),
        (None, false) => "the cluster has no NodePools, so nothing is bought: add some with -f, --default-pools takes those of `mullion up`".to_owned(),
    });
}

/// Returns a number with its noun: `1 pod`, `2 pods`.
fn count(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}
