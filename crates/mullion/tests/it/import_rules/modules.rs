//! The layers inside the API server: each module imports modules of lower layers only, so no two modules import each other.
//!
//! Imports are read from the source: `use` trees, paths inside code and macros, and `super::` chains that leave the module. What `lib.rs`
//! re-exports counts as an import of the module that it comes from.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The layers of `crates/apiserver/src`, lowest first, with their modules. Modules of one layer do not import each other either.
const LAYERS: &[(&str, &[&str])] = &[
    (
        "vocabulary",
        &["limits", "logs", "registry", "request", "version_order"],
    ),
    (
        "parts that know the vocabulary alone",
        &["connections", "crd", "flows", "metrics", "object"],
    ),
    ("judging objects without a server", &["trial"]),
    (
        "identity and what the program provides",
        &["auth", "provided"],
    ),
    ("admission and documents", &["admission", "openapi"]),
    ("configuration", &["config"]),
    ("the state of a server", &["state"]),
    ("http", &["http"]),
    ("the server's own writes", &["own"]),
    (
        "loops",
        &[
            "aggregation",
            "client_authority",
            "definitions",
            "flow_schemas",
            "policy_types",
            "service_range",
            "token_tracking",
        ],
    ),
    ("boot", &["boot"]),
    ("server", &["server"]),
    ("sockets", &["listen"]),
    ("tests of all kinds", &["growth"]),
];

#[test]
fn modules_of_the_api_server_import_lower_layers_only() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../apiserver/src");
    let lib = fs::read_to_string(sources.join("lib.rs")).expect("the crate has a lib.rs");
    let reexports = reexports(&lib);
    let mut broken = Vec::new();
    for file in files_below(&sources) {
        let relative = file.strip_prefix(&sources).expect("it is below");
        let module = module_path(relative);
        let Some(importer) = module.first() else {
            continue;
        };
        let source = fs::read_to_string(&file).expect("sources are text");
        for import in imports(&source, &module) {
            let imported = reexports.get(&import.name).unwrap_or(&import.name);
            if imported == importer {
                continue;
            }
            let (from, to) = (layer_of(importer), layer_of(imported));
            if to < from {
                continue;
            }
            broken.push(format!(
                "crates/apiserver/src/{}:{}: `{importer}` (layer \"{}\") imports `{imported}` (layer \"{}\")",
                relative.display(),
                import.line,
                LAYERS[from].0,
                LAYERS[to].0,
            ));
        }
    }
    assert!(
        broken.is_empty(),
        "modules import modules that are not of a lower layer:\n{}",
        broken.join("\n")
    );
}

/// Returns the index of a module's layer.
fn layer_of(module: &str) -> usize {
    let layer = LAYERS
        .iter()
        .position(|(_, modules)| modules.contains(&module));
    layer.unwrap_or_else(|| {
        panic!(
            "the module `{module}` of crates/apiserver has no layer in {}",
            file!()
        )
    })
}

/// Returns the Rust sources in a folder and the folders in it.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the folder can be read");
    let paths = entries.map(|entry| entry.expect("the folder can be read").path());
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            files.extend(files_below(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// Returns the module path of a file; it is empty for `lib.rs`.
fn module_path(relative: &Path) -> Vec<String> {
    let path = relative.with_extension("");
    let mut names: Vec<String> = path
        .iter()
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    if names
        .last()
        .is_some_and(|last| last == "mod" || last == "lib")
    {
        names.pop();
    }
    names
}

/// Returns the modules that the names come from which `lib.rs` re-exports.
fn reexports(lib: &str) -> BTreeMap<String, String> {
    let uses = paths(lib).into_iter().filter(|path| path.is_use);
    let names = uses.filter_map(|path| {
        let [module, .., name] = &path.names[..] else {
            return None;
        };
        Some((name.clone(), module.clone()))
    });
    names.collect()
}

/// An import of a top-level name of the crate.
#[derive(Debug, PartialEq)]
struct Import {
    line: usize,
    name: String,
}

/// Returns the names at the top of the crate that the source of a module imports.
fn imports(source: &str, module: &[String]) -> Vec<Import> {
    let imports = paths(source).into_iter().filter_map(|path| {
        let mut at: Vec<&String> = module.iter().chain(&path.inside).collect();
        let (first, rest) = path.names.split_first()?;
        match first.as_str() {
            "crate" => at.clear(),
            "self" => {}
            "super" => drop(at.pop()),
            _ => return None,
        }
        for name in rest {
            match name.as_str() {
                "self" => {}
                "super" => drop(at.pop()),
                _ => at.push(name),
            }
        }
        let name = (*at.first()?).clone();
        Some(Import {
            line: path.line,
            name,
        })
    });
    imports.collect()
}

/// A path in a source: one leaf of a `use` tree, or a path in code.
struct SourcePath {
    line: usize,
    names: Vec<String>,
    /// The modules inside the file that the path stands in.
    inside: Vec<String>,
    is_use: bool,
}

/// Returns all paths of a source, also those inside macros.
fn paths(source: &str) -> Vec<SourcePath> {
    let tokens: TokenStream = source.parse().expect("sources are Rust");
    let mut reader = PathReader::default();
    reader.read(tokens);
    reader.found
}

#[derive(Default)]
struct PathReader {
    found: Vec<SourcePath>,
    inside: Vec<String>,
}

impl PathReader {
    /// Reads the paths of code.
    fn read(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            match token {
                TokenTree::Ident(word) if word == "mod" && is_inline_module(&tokens[at..]) => {
                    let [_, name, TokenTree::Group(body), ..] = &tokens[at..] else {
                        unreachable!("an inline module has a name and a body");
                    };
                    self.inside.push(name.to_string());
                    self.read(body.stream());
                    self.inside.pop();
                    at += 3;
                }
                TokenTree::Ident(word) if word == "use" => {
                    at += 1 + self.read_tree(&tokens[at + 1..], &[], true);
                }
                TokenTree::Ident(_) => at += self.read_tree(&tokens[at..], &[], false),
                TokenTree::Group(group) => {
                    self.read(group.stream());
                    at += 1;
                }
                _ => at += 1,
            }
        }
    }

    /// Reads one path with the groups at its end, whose first names are `prefix`, and returns how many tokens it has.
    fn read_tree(&mut self, tokens: &[TokenTree], prefix: &[String], is_use: bool) -> usize {
        let mut names = prefix.to_vec();
        let mut at = 0;
        let mut line = 0;
        loop {
            match tokens.get(at) {
                Some(TokenTree::Ident(name)) => {
                    names.push(name.to_string());
                    line = name.span().start().line;
                }
                Some(TokenTree::Punct(star)) if is_use && star.as_char() == '*' => {
                    names.push("*".to_owned());
                    line = star.span().start().line;
                }
                Some(TokenTree::Group(group))
                    if is_use && group.delimiter() == Delimiter::Brace =>
                {
                    let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                    for branch in inner.split(is_comma) {
                        self.read_tree(branch, &names, true);
                    }
                    return at + 1;
                }
                _ => break,
            }
            at += 1;
            if !is_double_colon(&tokens[at..]) {
                break;
            }
            at += 2;
        }
        // A path has at least one name of its own: `prefix` alone is the path of the group around it.
        if names.len() > prefix.len() {
            self.found.push(SourcePath {
                line,
                names,
                inside: self.inside.clone(),
                is_use,
            });
        }
        at
    }
}

fn is_inline_module(tokens: &[TokenTree]) -> bool {
    matches!(
        tokens,
        [_, TokenTree::Ident(_), TokenTree::Group(body), ..] if body.delimiter() == Delimiter::Brace
    )
}

fn is_comma(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(comma) if comma.as_char() == ',')
}

fn is_double_colon(tokens: &[TokenTree]) -> bool {
    matches!(
        tokens,
        [TokenTree::Punct(one), TokenTree::Punct(two), ..] if one.as_char() == ':' && two.as_char() == ':'
    )
}

#[test]
fn imports_are_found_in_groups_in_code_in_macros_and_above_the_module() {
    let source = r##"
        use std::fmt;
        use crate::{
            server::{self, ApiServer},
            limits as bounds,
        };
        use super::{sibling, super::listen::Tls};
        // crate::comment::x() and "crate::text::x" are none.
        fn code() -> crate::registry::Row {
            println!("crate::text::x {}", crate::own::name());
            Vec::<super::super::boot::Seeds>::new()
        }
        mod tests {
            use super::*;
            use super::super::super::growth;
        }
    "##;
    let module = ["http".to_owned(), "write".to_owned()];
    let found = imports(source, &module);
    let found: Vec<(usize, &str)> = found
        .iter()
        .map(|import| (import.line, &*import.name))
        .filter(|(_, name)| *name != "http")
        .collect();
    let expected = [
        (4, "server"),
        (4, "server"),
        (5, "limits"),
        (7, "listen"),
        (9, "registry"),
        (10, "own"),
        (11, "boot"),
        (15, "growth"),
    ];
    assert_eq!(found, expected);
    let lib = "pub use limits::{Limits, gate::Gate}; mod limits;";
    assert_eq!(reexports(lib)["Gate"], "limits");
}
