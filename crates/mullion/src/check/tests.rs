//! Tests the examples of the rules (`tests/check/MUL*.yaml`), what holds for all of them, and the page that is generated from the table.
//!
//! A file has sections: `### bad` must have a finding of the file's rule, `### good` must not. `### fixed` is the section before it after
//! all fixes of that rule; without it no fix is written. `### pools` describes the nodes for the sections below it, `### live` says that
//! their objects come from a running cluster, and `### placing` that the cluster places pods by their images.

use std::{collections::BTreeSet, fs, path::PathBuf};

use mullion_images::Program;
use serde_json::Value;

use super::{
    images::{Fact, Images, Table},
    live::Live,
    session::Session,
    source::Text,
    table,
    yaml::tree,
};

/// The table, and images about which only a registry could have facts.
#[derive(Default)]
struct Examples(Table);

impl Images for Examples {
    fn fact(&self, image: &str) -> Option<Fact> {
        let name = image.strip_prefix("localhost/");
        let Some(name) = name else {
            return self.0.fact(image);
        };
        let known = self
            .0
            .fact("mcr.microsoft.com/windows/nanoserver:ltsc2022")?;
        let starts = |entrypoint: &[&str], arguments: &[&str]| Program {
            entrypoint: entrypoint.iter().map(|own| (*own).to_owned()).collect(),
            arguments: arguments.iter().map(|own| (*own).to_owned()).collect(),
        };
        let iis = [r"C:\ServiceMonitor.exe", "w3svc"];
        Some(Fact {
            guess: false,
            unversioned: name == "unversioned",
            program: match name {
                "iis" => Some(starts(&iis, &[])),
                "monitored" => Some(starts(&[r"C:\LogMonitor\LogMonitor.exe"], &iis)),
                _ => None,
            },
            ..known
        })
    }
}

struct Section {
    kind: String,
    text: String,
    pools: Option<String>,
    live: Option<bool>,
}

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/check")
}

fn sections(content: &str) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    let (mut pools, mut live) = (None, None);
    for part in content.split("### ").skip(1) {
        let (head, text) = part.split_once('\n').expect("a section has a head");
        let kind = head.split(':').next().unwrap_or_default().trim().to_owned();
        match kind.as_str() {
            "pools" => pools = Some(text.to_owned()).filter(|text| !text.trim().is_empty()),
            "live" => live = Some(false),
            "placing" => live = Some(true),
            _ => sections.push(Section {
                kind,
                text: text.to_owned(),
                pools: pools.clone(),
                live,
            }),
        }
    }
    sections
}

fn examples() -> Vec<(&'static str, Vec<Section>)> {
    let examples = table::all().map(|rule| {
        let path = directory().join(format!("{}.yaml", rule.id));
        let content =
            fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (rule.id, sections(&content))
    });
    examples.collect()
}

fn session(section: &Section, select: &[&str]) -> Session {
    let text = |content: &str| {
        Text::of("example".to_owned(), None, content.to_owned())
            .unwrap_or_else(|error| panic!("{error}\n{content}"))
    };
    let objects = |content: &str| text(content).objects(0).expect("objects");
    Session {
        texts: vec![text(&section.text)],
        live: section.live.map(|places_by_image| Live {
            places_by_image,
            ..Live::default()
        }),
        known: section.pools.as_deref().map(objects),
        images: Box::new(Examples::default()),
        select: select.iter().map(|id| (*id).to_owned()).collect(),
        ignore: Vec::new(),
        now: jiff::Timestamp::UNIX_EPOCH,
    }
}

#[test]
fn every_rule_finds_its_examples_and_passes_their_neighbours() {
    let mut wrong = Vec::new();
    for (id, sections) in examples() {
        let kinds: BTreeSet<_> = sections
            .iter()
            .map(|section| section.kind.as_str())
            .collect();
        if !kinds.contains("bad") || !kinds.contains("good") {
            wrong.push(format!("{id}: a bad and a good example are needed"));
        }
        for section in &sections {
            let found = session(section, &[id])
                .check()
                .expect("it can be checked")
                .reports
                .len();
            let shown = section.text.trim();
            match section.kind.as_str() {
                "bad" if found == 0 => wrong.push(format!("{id}: not found in\n{shown}")),
                "good" | "fixed" if found > 0 => wrong.push(format!(
                    "{id}: found in the {} example\n{shown}",
                    section.kind
                )),
                _ => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn fixes_are_those_of_the_examples() {
    let mut wrong = Vec::new();
    for (id, sections) in examples() {
        for (index, section) in sections
            .iter()
            .enumerate()
            .filter(|(_, section)| section.kind == "bad")
        {
            let expected = match sections.get(index + 1) {
                Some(next) if next.kind == "fixed" => &next.text,
                _ => &section.text,
            };
            let mut session = session(section, &[id]);
            session.fix(true).expect("it can be fixed");
            let made = &session.texts[0].content;
            if made != expected {
                wrong.push(format!(
                    "{id}: the fix of\n{}\nis\n{made}\nnot\n{expected}",
                    section.text
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn fixed_texts_have_nothing_left_to_fix_and_keep_their_comments() {
    for (id, sections) in examples() {
        for section in sections {
            for with_unsafe in [false, true] {
                let mut session = session(&section, &[]);
                session.fix(with_unsafe).expect("it can be fixed");
                let fixed = session.texts[0].content.clone();
                let outcome = session.check().expect("it can be checked");
                assert_eq!(
                    outcome.fixable(with_unsafe),
                    0,
                    "{id}:\n{}\nbecomes\n{fixed}",
                    section.text
                );
                let (again, changed) = session.fix(with_unsafe).expect("it can be fixed");
                assert_eq!((again, changed.len()), (0, 0), "{id}:\n{fixed}");
                let alone = |text: &str| {
                    let (_, comments) = tree::parse(text).expect("YAML");
                    let comments = comments.into_iter().filter(|comment| comment.alone);
                    comments.map(|comment| comment.text).collect::<Vec<_>>()
                };
                assert_eq!(alone(&section.text), alone(&fixed), "{id}:\n{fixed}");
            }
        }
    }
}

/// Nothing panics, whatever field of an example is missing or wrong.
#[test]
fn objects_without_a_part_are_checked_too() {
    fn holes(value: &Value) -> Vec<Value> {
        let mut made = vec![Value::Null, Value::from("x"), Value::Array(Vec::new())];
        match value {
            Value::Object(fields) => {
                for (key, inner) in fields {
                    for hole in holes(inner) {
                        let mut fields = fields.clone();
                        fields.insert(key.clone(), hole);
                        made.push(Value::Object(fields));
                    }
                }
            }
            Value::Array(items) => {
                for (index, inner) in items.iter().enumerate() {
                    for hole in holes(inner) {
                        let mut items = items.clone();
                        items[index] = hole;
                        made.push(Value::Array(items));
                    }
                }
            }
            _ => {}
        }
        made
    }
    for (_, sections) in examples() {
        for section in sections.iter().filter(|section| section.kind == "bad") {
            let session = session(section, &[]);
            for object in session.texts[0].objects(0).expect("objects") {
                for hole in holes(&object.value) {
                    let text =
                        Text::of("hole".to_owned(), None, hole.to_string()).expect("JSON is YAML");
                    let mut own = self::session(section, &[]);
                    own.texts.push(text);
                    own.check().expect("it can be checked");
                }
            }
        }
    }
}

/// Rules that judge fields by schemas and by validation would find something in every manifest if these were wrong.
#[test]
fn whole_manifests_have_no_finding_about_fields_and_values() {
    let path = directory().join("whole.yaml");
    let section = Section {
        kind: "good".to_owned(),
        text: fs::read_to_string(path).expect("whole.yaml"),
        pools: None,
        live: None,
    };
    let rules = [
        "MUL073", "MUL074", "MUL078", "MUL079", "MUL080", "MUL081", "MUL082", "MUL083",
    ];
    let outcome = session(&section, &rules)
        .check()
        .expect("it can be checked");
    let found = outcome.reports.iter();
    let found: Vec<_> = found
        .map(|own| {
            format!(
                "{}: {}",
                own.object,
                own.finding.problem.text(&own.finding.at)
            )
        })
        .collect();
    assert_eq!(found, [] as [&str; 0]);
    assert_eq!((outcome.objects, outcome.unknown.len()), (6, 0));
}

#[test]
fn the_api_servers_words_are_left_out_only_beside_a_finding_that_is_reported() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  os: {name: Windows}\n  containers: [{name: web, image: 'nginx:1.27'}]\n";
    let found = |text: &str, select: &[&str], ignore: &[&str]| {
        let section = Section {
            kind: "bad".to_owned(),
            text: text.to_owned(),
            pools: None,
            live: None,
        };
        let mut session = session(&section, select);
        session.ignore = ignore.iter().map(|id| (*id).to_owned()).collect();
        let reports = session.check().expect("it can be checked").reports;
        let ids: BTreeSet<_> = reports.iter().map(|own| own.finding.rule.id).collect();
        let of_value = ["MUL013", "MUL083"].into_iter();
        of_value.filter(|id| ids.contains(id)).collect::<Vec<_>>()
    };
    assert_eq!(found(text, &[], &[]), ["MUL013"]);
    assert_eq!(found(text, &["MUL083"], &[]), ["MUL083"]);
    assert_eq!(found(text, &[], &["MUL013"]), ["MUL083"]);
    let silenced = text.replace("Windows}", "Windows}  # mullion:ignore MUL013 for a test");
    assert_eq!(found(&silenced, &[], &[]), ["MUL083"]);
}

#[test]
fn a_required_field_that_is_misspelt_is_told_as_missing_where_its_misspelling_is_not_reported() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers: [{nmae: web, image: 'nginx:1.27'}]\n";
    let found = |text: &str, ignore: &[&str]| {
        let section = Section {
            kind: "bad".to_owned(),
            text: text.to_owned(),
            pools: None,
            live: None,
        };
        let mut session = session(&section, &["MUL080", "MUL083"]);
        session.ignore = ignore.iter().map(|id| (*id).to_owned()).collect();
        let reports = session.check().expect("it can be checked").reports;
        let ids = reports.iter().map(|own| own.finding.rule.id);
        ids.collect::<Vec<_>>()
    };
    assert_eq!(found(text, &[]), ["MUL080"]);
    assert_eq!(found(text, &["MUL080"]), ["MUL083"]);
    let whole = text.replace("spec:", "spce:");
    assert_eq!(found(&whole, &[]), ["MUL080"]);
    assert_eq!(found(&whole, &["MUL080"]), ["MUL083"]);
}

#[test]
fn the_documentation_is_that_of_the_table() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/check.md");
    let page = fs::read_to_string(&path).expect("docs/check.md");
    let (head, _) = page
        .split_once("<!-- rules -->")
        .expect("the mark before the tables");
    let expected = format!("{head}<!-- rules -->\n\n{}", super::explain::tables());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &expected).expect("writable");
    }
    assert!(
        page == expected || std::env::var_os("UPDATE_DOCS").is_some(),
        "UPDATE_DOCS=1 writes docs/check.md anew"
    );
}

#[test]
fn a_comment_with_a_reason_silences_a_rule_below_it() {
    let pod = |above: &str, behind: &str, inner: &str| {
        format!(
            "{above}apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec:\n  nodeSelector: {{kubernetes.io/os: windows}}\n  containers:{behind}\n{inner}  - name: a\n    image: mcr.microsoft.com/windows/nanoserver:ltsc2022\n"
        )
    };
    let ignore = "# mullion:ignore MUL050 it is short-lived\n";
    let cases = [
        (pod("", "", ""), 1),
        (pod(ignore, "", ""), 0),
        (pod("", &format!(" {}", ignore.trim_end()), ""), 0),
        (pod("", "", &format!("  {ignore}")), 0),
        (pod("# mullion:ignore MUL050\n", "", ""), 1),
        (pod("# mullion:ignore MUL051 another\n", "", ""), 1),
        (pod("", "", &format!("  {ignore}  # and more\n")), 0),
    ];
    for (text, expected) in cases {
        let section = Section {
            kind: "bad".to_owned(),
            text,
            pools: None,
            live: None,
        };
        let found = session(&section, &["MUL050"])
            .check()
            .expect("it can be checked")
            .reports
            .len();
        assert_eq!(found, expected, "{}", section.text);
    }
}

#[test]
fn what_helm_and_kustomize_made_names_its_source() {
    let text = "---\n# Source: shop/templates/web.yaml\napiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers: [{name: a, image: 'mcr.microsoft.com/windows/nanoserver:ltsc2022'}]\n---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: b\n  annotations:\n    config.kubernetes.io/origin: |\n      path: base/pod.yaml\nspec:\n  containers: [{name: a, image: 'mcr.microsoft.com/windows/nanoserver:ltsc2022'}]\n";
    let section = Section {
        kind: "bad".to_owned(),
        text: text.to_owned(),
        pools: None,
        live: None,
    };
    let outcome = session(&section, &["MUL001"])
        .check()
        .expect("it can be checked");
    let found: Vec<_> = outcome
        .reports
        .iter()
        .map(|report| (report.origin.as_deref(), report.line))
        .collect();
    assert_eq!(
        found,
        [
            (Some("shop/templates/web.yaml"), 6),
            (Some("base/pod.yaml"), 16)
        ]
    );
}
