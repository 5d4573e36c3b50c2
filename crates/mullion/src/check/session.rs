//! Runs a check: it takes texts, returns findings, and writes fixes back to the texts.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::{
    finding::Finding,
    images::Images,
    live::Live,
    path::Path,
    problem::Problem,
    rules::{self, Context},
    schemas::UnknownKind,
    source::Text,
    subject::{NO_TEXT, Object},
    table::Severity,
    yaml::edit,
};
use crate::failure::Failure;

/// The texts to check, and how to check them.
pub(super) struct Session {
    pub(super) texts: Vec<Text>,
    /// Objects to check that come from a running cluster, not from a text.
    pub(super) live: Option<Live>,
    /// Objects that describe the cluster's nodes.
    pub(super) known: Option<Vec<Object>>,
    pub(super) images: Box<dyn Images>,
    pub(super) select: Vec<String>,
    pub(super) ignore: Vec<String>,
    /// The time by which the API server's validation judges times.
    pub(super) now: Timestamp,
}

/// A finding with its place in a text.
pub(super) struct Report {
    pub(super) finding: Finding,
    /// The object, such as `deployment/web`.
    pub(super) object: String,
    /// The name of the file, or `stdin` or `cluster`.
    pub(super) file: String,
    /// The file from which a tool generated the object.
    pub(super) origin: Option<String>,
    /// The line, from 1; 0 if the object does not come from a text.
    pub(super) line: usize,
    pub(super) column: usize,
}

/// The result of a check.
pub(super) struct Outcome {
    pub(super) reports: Vec<Report>,
    /// The number of objects checked.
    pub(super) objects: usize,
    /// The kinds of which nothing is known, so that their fields are not checked.
    pub(super) unknown: Vec<UnknownKind>,
    /// Why files are not checked.
    pub(super) unread: Vec<String>,
}

/// What the rules say of the objects.
struct Applied {
    objects: Vec<Object>,
    /// The number of objects that are checked; those that describe the cluster's nodes follow.
    checked: usize,
    /// The findings, sorted by text and line.
    found: Vec<Finding>,
    unknown: Vec<UnknownKind>,
}

impl Outcome {
    /// Returns whether any finding is an error or a warning.
    pub(super) fn is_bad(&self) -> bool {
        self.reports
            .iter()
            .any(|report| report.finding.severity > Severity::Info)
    }

    /// Returns how many findings `--fix`, or `--fix --unsafe`, would fix.
    pub(super) fn fixable(&self, with_unsafe: bool) -> usize {
        let is = |report: &&Report| {
            report
                .finding
                .fix
                .as_ref()
                .is_some_and(|fix| fix.safe || with_unsafe)
        };
        self.reports.iter().filter(is).count()
    }
}

/// The rules with the API server's own words: its errors and its warnings.
const REFUSED: &str = "MUL083";
const WARNED: &str = "MUL084";
/// Rules about fields that the API server refuses for one operating system.
const OF_A_SYSTEM: [&str; 6] = ["MUL013", "MUL040", "MUL041", "MUL042", "MUL043", "MUL044"];

/// Removes the API server's words from where the finding of another rule says the same in its own. A finding that is not reported says
/// nothing, so it must not be among these.
fn drop_repeated(found: &mut Vec<Finding>) {
    let is_refused = |own: &Finding| [REFUSED, WARNED].contains(&own.rule.id);
    let (refused, others): (Vec<_>, Vec<_>) =
        std::mem::take(found).into_iter().partition(is_refused);
    let mut by_object: BTreeMap<usize, Vec<&Finding>> = BTreeMap::new();
    for other in &others {
        by_object.entry(other.object).or_default().push(other);
    }
    let says_the_same = |other: &Finding, own: &Finding| {
        let (at, own_at) = (&other.at, &own.at);
        // The other stands for a field around this one, or for one right below it.
        let is_around = own_at.0.starts_with(&at.0);
        let is_below = at.0.starts_with(&own_at.0) && at.0.len() == own_at.0.len() + 1;
        let is_near = is_around || is_below;
        let is_of_a_system = OF_A_SYSTEM.contains(&other.rule.id);
        let is_as_bad = other.severity == Severity::Error || own.rule.id == WARNED;
        at == own_at && is_as_bad || is_of_a_system && is_near
    };
    let kept = refused.into_iter().filter(|own| {
        let mut beside = by_object.get(&own.object).into_iter().flatten();
        let is_whole = own.at == Path::default();
        !beside.any(|other| is_misspelt(own, other) || !is_whole && says_the_same(other, own))
    });
    let kept: Vec<_> = kept.collect();
    *found = others;
    found.extend(kept);
}

/// Returns whether a field is missing because it is misspelt, which the other finding says.
fn is_misspelt(missing: &Finding, other: &Finding) -> bool {
    let Problem::Refused {
        field,
        is_missing: true,
        ..
    } = &missing.problem
    else {
        return false;
    };
    let Problem::UnknownField { near, .. } = &other.problem else {
        return false;
    };
    let Some((_, around)) = other.at.0.split_last() else {
        return false;
    };
    // Where a whole object is missing, the API server names a field in it: `spec.containers` of a pod without `spec`.
    let absent = field.split(['.', '[']).nth(around.len());
    near.as_deref() == absent && around == missing.at.0.as_slice()
}

impl Session {
    /// Applies the rules.
    fn apply(&self) -> Result<Applied, Failure> {
        let mut objects = Vec::new();
        for (number, text) in self.texts.iter().enumerate() {
            objects.extend(text.objects(number)?);
        }
        let copy = |own: &Object| Object {
            value: own.value.clone(),
            text: NO_TEXT,
            document: own.document,
            root: Path::default(),
            is_patch: own.is_patch,
        };
        let live = self.live.as_ref();
        objects.extend(live.iter().flat_map(|live| &live.objects).map(copy));
        let checked = objects.len();
        objects.extend(self.known.iter().flatten().map(copy));
        let context = Context::new(
            &objects,
            checked,
            self.known.is_some(),
            live,
            self.images.as_ref(),
            self.now,
        );
        let mut found = rules::all(&context).0;
        let of_texts = context.checked().map(|(_, object)| object);
        let unknown = context
            .schemas
            .unknown(of_texts.filter(|object| !object.is_live()));
        drop(context);
        let named = |ids: &[String], id: &str| ids.iter().any(|own| own.eq_ignore_ascii_case(id));
        found.retain(|finding| {
            let id = finding.rule.id;
            let object = &objects[finding.object];
            let silenced = self
                .texts
                .get(object.text)
                .is_some_and(|text| text.ignores.silence(id, &text.locate(object, &finding.at)));
            (self.select.is_empty() || named(&self.select, id))
                && !named(&self.ignore, id)
                && !silenced
        });
        drop_repeated(&mut found);
        found.sort_by_key(|finding| (finding.object, finding.at.clone(), finding.rule.id));
        // A pod template may match a rule by several containers with the same sentence.
        found.dedup_by(|one, other| {
            one.object == other.object && one.at == other.at && one.problem == other.problem
        });
        Ok(Applied {
            objects,
            checked,
            found,
            unknown,
        })
    }

    /// Checks the texts and the cluster's objects, and returns the findings with their places.
    pub(super) fn check(&self) -> Result<Outcome, Failure> {
        let Applied {
            objects,
            checked,
            found,
            unknown,
        } = self.apply()?;
        let mut reports: Vec<_> = found
            .into_iter()
            .map(|finding| {
                let object = &objects[finding.object];
                let text = self.texts.get(object.text);
                let location = text
                    .map(|text| text.locate(object, &finding.at))
                    .unwrap_or_default();
                let report = Report {
                    object: object.title(),
                    file: text.map_or("cluster", |text| text.name.as_str()).to_owned(),
                    origin: text.and_then(|text| text.origin(object)).map(str::to_owned),
                    line: location.line,
                    column: location.column,
                    finding,
                };
                (object.text, report)
            })
            .collect();
        reports.sort_by_key(|(text, report)| {
            (
                *text,
                report.finding.object,
                report.line,
                report.finding.rule.id,
            )
        });
        let reports = reports.into_iter().map(|(_, report)| report).collect();
        Ok(Outcome {
            reports,
            objects: checked,
            unknown,
            unread: Vec::new(),
        })
    }

    /// Changes the texts until there is no fix left to write. Returns how many findings were fixed, and in which texts.
    pub(super) fn fix(&mut self, with_unsafe: bool) -> Result<(usize, BTreeSet<usize>), Failure> {
        /// The largest number of rounds. A fix may reveal another finding; if that does not end, a rule is wrong.
        const ROUNDS: usize = 10;
        let mut fixed = 0;
        let mut changed = BTreeSet::new();
        for _ in 0..ROUNDS {
            // Parsed anew in every round, because an edit moves the positions of what follows.
            let Applied { objects, found, .. } = self.apply()?;
            let mut written = 0;
            for finding in found {
                let Some(fix) = finding.fix.filter(|fix| fix.safe || with_unsafe) else {
                    continue;
                };
                let object = &objects[finding.object];
                let Some(text) = self.texts.get(object.text) else {
                    continue;
                };
                // Either all edits of a fix are applied, or none.
                let mut edits = fix.edits.iter().map(|edit| edit.below(&object.root));
                let content = edits.try_fold(text.content.clone(), |content, edit| {
                    edit::apply(&content, object.document, &edit)
                });
                if let Some(content) = content {
                    self.texts[object.text] = text.with_content(content)?;
                    changed.insert(object.text);
                    written += 1;
                }
            }
            fixed += written;
            if written == 0 {
                break;
            }
        }
        Ok((fixed, changed))
    }
}
