//! Implements `mullion check`: it finds what will go wrong on Windows nodes, in manifests before they are applied, or in a running cluster.
//!
//! [`source`] reads the texts; [`subject`], [`placement`], [`fleet`], [`images`] and [`schemas`] provide what the rules need; [`rules`]
//! has the rules as pure functions, and [`table`] their IDs and texts. Findings are data ([`problem`]); [`text`] turns them into sentences,
//! [`report`] and [`formats`] print them. [`mod@session`] applies the rules and writes fixes through [`yaml`], which changes single fields of
//! a file and leaves everything else as it is.

mod eksctl;
pub(crate) mod explain;
mod finding;
pub(crate) mod fleet;
mod formats;
mod ignore;
mod images;
mod kustomize;
mod live;
pub(crate) mod path;
mod placeholder;
mod placement;
mod problem;
pub(crate) mod report;
mod rules;
mod schemas;
mod session;
mod source;
pub(crate) mod subject;
mod table;
#[cfg(test)]
mod tests;
mod text;
pub(crate) mod yaml;

use std::{collections::BTreeSet, path::PathBuf};

use clap::{Args, ValueEnum};
use jiff::Timestamp;

use crate::{
    failure::{Failure, file_error},
    files, input, out,
};
use session::Session;

/// Flags of `mullion check`.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Ends with 0 if nothing worse than a remark is found, with 1 for errors and warnings, with 2 for wrong input.

Examples:
  mullion check shop/
  helm template chart/ | mullion check -
  mullion check --pools nodepools.yaml shop/
  mullion check --fix shop/
  mullion check --live
  mullion check --explain MUL001"
)]
pub(crate) struct CheckArgs {
    /// Manifests, directories with manifests in or below them, or `-` for stdin
    #[arg(value_name = "PATH", required_unless_present_any = ["live", "explain"])]
    paths: Vec<PathBuf>,

    /// Check the objects of a cluster too
    #[arg(long)]
    live: bool,

    /// The cluster's kubeconfig [default: $KUBECONFIG, else that of `mullion up`, else ~/.kube/config]
    #[arg(long, value_name = "PATH", requires = "live")]
    kubeconfig: Option<PathBuf>,

    /// The kubeconfig's context
    #[arg(long, value_name = "NAME", requires = "live")]
    context: Option<String>,

    /// What nodes the cluster has: Nodes, NodePools with their EC2NodeClasses, or an eksctl ClusterConfig
    #[arg(long, value_name = "FILE")]
    pools: Option<PathBuf>,

    /// Where to learn what images run on
    #[arg(long, value_enum, default_value_t = ImageSource::Auto)]
    images: ImageSource,

    /// Write the fixes that are safe; of stdin, print the fixed text
    #[arg(long, conflicts_with = "live")]
    fix: bool,

    /// Write the fixes too that may change what runs today
    #[arg(long, requires = "fix")]
    r#unsafe: bool,

    /// Say what a rule is about
    #[arg(long, value_name = "ID", conflicts_with_all = ["fix", "live"])]
    explain: Option<String>,

    /// Apply only these rules; may be repeated, or have commas between
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    select: Vec<String>,

    /// Do not apply these rules; may be repeated, or have commas between
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    ignore: Vec<String>,

    /// How to print the findings
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

/// Where facts of images come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ImageSource {
    /// The registries, then the table
    Auto,
    /// The table of usual names and tags: guesses
    Table,
    /// Nothing
    Off,
}

/// How findings are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people
    Text,
    /// One JSON object
    Json,
    /// SARIF 2.1.0
    Sarif,
    /// Workflow commands of GitHub
    Github,
}

/// A finding about a running cluster, for other commands to show.
#[derive(Clone, Debug)]
pub(crate) struct LiveFinding {
    /// The rule's ID.
    pub(crate) id: String,
    /// Whether the finding is an error; otherwise it is a warning.
    pub(crate) is_error: bool,
    /// The object, such as `deployment/web`.
    pub(crate) object: String,
    /// The sentence about the problem.
    pub(crate) text: String,
}

/// Returns the errors and warnings about the workloads of a cluster. Images are judged by their names: no registry is asked.
///
/// # Errors
/// The cluster does not answer, or the user may not list a kind.
pub(crate) async fn live_findings(
    client: &kube::Client,
    server: &str,
) -> Result<Vec<LiveFinding>, Failure> {
    let session = Session {
        texts: Vec::new(),
        live: Some(live::cluster_of(client, server).await?),
        known: None,
        images: Box::new(images::Table::default()),
        select: Vec::new(),
        ignore: Vec::new(),
        now: Timestamp::now(),
    };
    let reports = session.check()?.reports.into_iter();
    let bad = reports.filter(|report| report.finding.severity > table::Severity::Info);
    let findings = bad.map(|report| LiveFinding {
        id: report.finding.rule.id.to_owned(),
        is_error: report.finding.severity == table::Severity::Error,
        text: report.finding.problem.text(&report.finding.at),
        object: report.object,
    });
    Ok(findings.collect())
}

/// Runs the command. Returns true if there are no findings worse than remarks.
pub(crate) async fn run(args: CheckArgs) -> Result<bool, Failure> {
    if let Some(id) = &args.explain {
        out::line(&explain::rule(id)?);
        return Ok(true);
    }
    let named = args.select.iter().chain(&args.ignore);
    if let Some(id) = named.into_iter().find(|id| table::rule(id).is_none()) {
        return Err(explain::unknown(id));
    }
    let is_stdin = args.paths.iter().any(|path| input::is_stdin(path));
    if args.fix && is_stdin && args.paths.len() > 1 {
        return Err(Failure::input(
            "--fix prints the fixed text of stdin: no file can be given with it",
        ));
    }
    let source::Sources { texts, unread } = source::texts(&args.paths)?;
    let has_none = texts.is_empty() && !args.live && !unread.is_empty();
    // Programs get an answer even if there is nothing to check: it has the causes.
    if has_none && args.output == Format::Text {
        return not_checked(unread).map(|()| true);
    }
    let mut session = session(&args, texts).await?;
    for text in &session.texts {
        for (line, fault) in &text.ignores.faults {
            out::note(&format!("{}:{line}: {fault}", text.name));
        }
    }
    // Fixed before the check, so that only what remains is reported.
    let fixed = if args.fix {
        Some(write(&mut session, args.r#unsafe)?)
    } else {
        None
    };
    let mut outcome = session.check()?;
    let messages = unread.iter().map(|failure| failure.message().to_owned());
    outcome.unread = messages.collect();
    for remark in schemas::remarks(&outcome.unknown) {
        out::note(&remark);
    }
    let asked = if args.fix || args.live {
        String::new()
    } else {
        args.paths
            .iter()
            .map(|path| path.display().to_string())
            .collect::<Vec<_>>()
            .join(" ")
    };
    // The fixed text of stdin goes to stdout, so messages go to stderr.
    let say = |text: &str| {
        if args.fix && is_stdin {
            out::aside(text)
        } else {
            out::line(text)
        }
    };
    match args.output {
        Format::Text => {
            let aside = args.fix && is_stdin;
            let (colours, width) = if aside {
                (out::colours_on(&std::io::stderr()), out::stderr_width())
            } else {
                (out::colours(), out::width())
            };
            if !outcome.reports.is_empty() {
                say(&report::page(&outcome, colours, width));
                say("");
            }
            if let Some((count, files)) = fixed {
                let fixes = report::counted(count, "fix", "fixes");
                say(&format!(
                    "{fixes} written in {}.",
                    report::counted(files, "file", "files")
                ));
            }
            say(&report::summary(&outcome, &asked));
        }
        Format::Json => say(&formats::json(&outcome)),
        Format::Sarif => say(&formats::sarif(&outcome)),
        Format::Github if outcome.reports.is_empty() => {}
        Format::Github => say(&formats::github(&outcome)),
    }
    not_checked(unread)?;
    Ok(!outcome.is_bad())
}

/// Returns the failure of the files that cannot be read.
fn not_checked(unread: Vec<Failure>) -> Result<(), Failure> {
    match Failure::of_all(unread, "files are not checked") {
        Some(failure) => Err(failure),
        None => Ok(()),
    }
}

async fn session(args: &CheckArgs, texts: Vec<source::Text>) -> Result<Session, Failure> {
    if let Some(remark) = source::nothing_to_check(&texts)? {
        out::note(&remark);
    }
    let known = match &args.pools {
        Some(path) => {
            let mut objects = Vec::new();
            let sources = source::texts(std::slice::from_ref(path))?;
            not_checked(sources.unread)?;
            for text in sources.texts {
                objects.extend(text.objects(0)?);
            }
            let groups = fleet::Fleet::of(&objects, true).groups;
            // An empty description would be taken for a cluster without nodes, and every Windows pod for an
            // error.
            if groups.is_empty() {
                let shown = input::named(path);
                return Err(Failure::input(format!(
                    "{shown} has no nodes, no NodePools and no ClusterConfig with node groups"
                ))
                .hint("kubectl get nodes,nodepools,ec2nodeclasses -o yaml > pools.yaml"));
            }
            Some(objects)
        }
        None => None,
    };
    let live = if args.live {
        Some(live::cluster(args.kubeconfig.clone(), args.context.clone()).await?)
    } else {
        None
    };
    let images: Box<dyn images::Images> = match args.images {
        ImageSource::Auto => {
            let mut named = BTreeSet::new();
            for text in &texts {
                named.extend(text.objects(0)?.iter().flat_map(subject::images));
            }
            let live = live.iter().flat_map(|live: &live::Live| &live.objects);
            named.extend(live.flat_map(subject::images));
            Box::new(images::RegistryAnswers::of(named).await)
        }
        ImageSource::Table => Box::new(images::Table::default()),
        ImageSource::Off => Box::new(images::Off),
    };
    Ok(Session {
        texts,
        live,
        known,
        images,
        select: args.select.clone(),
        ignore: args.ignore.clone(),
        now: Timestamp::now(),
    })
}

/// Fixes the texts and writes those that changed; the text of stdin is printed in any case.
fn write(session: &mut Session, with_unsafe: bool) -> Result<(usize, usize), Failure> {
    let (fixed, changed) = session.fix(with_unsafe)?;
    for (number, text) in session.texts.iter().enumerate() {
        match &text.file {
            None => out::whole(&text.content),
            Some(path) if changed.contains(&number) => {
                files::replace(path, text.content.as_bytes()).map_err(|error| {
                    Failure::run(format!(
                        "{} cannot be written: {}",
                        path.display(),
                        file_error(&error)
                    ))
                })?;
            }
            Some(_) => {}
        }
    }
    Ok((fixed, changed.len()))
}
