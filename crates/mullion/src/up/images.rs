//! `--images FILE`: facts about the user's own images that their tags do not show, which precede the built-in table.

use std::{borrow::Cow, fmt, path::Path};

use mullion_engine::{
    images::{ImageRow, ImageTable, Published},
    windows::{Build, Builds, Release},
};
use serde::Deserialize;

use crate::{
    failure::Failure,
    input::{self, FieldsError},
};

const HINT: &str = "images: [{repository: registry.example.com/shop, os: windows, build: 10.0.20348, megabytes: 2300}]";

/// The content of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    images: Vec<Image>,
    #[serde(default)]
    builds: Vec<NamedBuild>,
}

/// Images of a repository and of everything below it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Image {
    repository: String,
    os: Os,
    build: Option<String>,
    #[serde(default = "usual_megabytes")]
    megabytes: u64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Os {
    Linux,
    Windows,
    Any,
}

/// A Windows build, and the words in tags that mean it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedBuild {
    build: String,
    name: String,
    tags: Vec<String>,
}

fn usual_megabytes() -> u64 {
    100
}

/// Returns the built-in table, preceded by the rows of the file if there is one.
pub(crate) fn table(file: Option<&Path>) -> Result<ImageTable, Failure> {
    let Some(path) = file else {
        return Ok(ImageTable::default());
    };
    let text = input::text_of(path).map_err(|failure| failure.hint(HINT))?;
    parse(&text).map_err(|why| Failure::input(format!("{}: {why}", input::named(path))).hint(HINT))
}

/// The reason why a text is not a table of images; the first text of a variant is the path of the field.
#[derive(Debug)]
enum TableError {
    Fields(FieldsError),
    Build(String, String),
    NotWindows(String),
    TooLarge(String, u64),
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TableError::Fields(error) => write!(f, "{error}"),
            TableError::Build(at, text) => {
                write!(f, "{at}: {text:?} is not a build such as 10.0.20348")
            }
            TableError::NotWindows(at) => write!(f, "{at}: only a Windows image has a build"),
            TableError::TooLarge(at, megabytes) => write!(f, "{at}: {megabytes} is too large"),
        }
    }
}

fn parse(text: &str) -> Result<ImageTable, TableError> {
    let file: File = input::fields(text).map_err(TableError::Fields)?;
    let mut builds = Builds::default();
    for (index, named) in file.builds.into_iter().enumerate() {
        let build = build(&named.build, &format!("builds[{index}].build"))?;
        builds.add(Release {
            build,
            name: named.name,
            tags: named.tags.iter().map(|tag| tag.to_lowercase()).collect(),
        });
    }
    let mut rows = Vec::with_capacity(file.images.len());
    for (index, image) in file.images.into_iter().enumerate() {
        let at = |field: &str| format!("images[{index}].{field}");
        let fixed = image
            .build
            .as_deref()
            .map(|text| build(text, &at("build")))
            .transpose()?;
        let published = match (image.os, fixed) {
            (Os::Windows, build) => Published::Windows(build),
            (_, Some(_)) => {
                return Err(TableError::NotWindows(at("build")));
            }
            (Os::Linux, None) => Published::Linux,
            (Os::Any, None) => Published::Both,
        };
        let bytes = image
            .megabytes
            .checked_mul(1_000_000)
            .ok_or_else(|| TableError::TooLarge(at("megabytes"), image.megabytes))?;
        rows.push(ImageRow {
            repository: Cow::Owned(image.repository),
            published,
            bytes,
            base_bytes: 0,
        });
    }
    Ok(ImageTable::extended(rows, builds))
}

fn build(text: &str, at: &str) -> Result<Build, TableError> {
    text.parse()
        .map_err(|_| TableError::Build(at.to_owned(), text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_builds_are_read_and_wrong_ones_named() {
        assert!(
            parse("images: [{repository: r.example.com/shop, os: windows, build: 10.0.20348}]")
                .is_ok()
        );
        assert!(
            parse("builds: [{build: 10.0.19045, name: Windows 10 22H2, tags: [22h2]}]").is_ok()
        );
        let wrong = parse("images: [{repository: a, os: linux, build: 10.0.20348}]")
            .expect_err("a Linux image has no build");
        assert_eq!(
            wrong.to_string(),
            "images[0].build: only a Windows image has a build"
        );
        let wrong =
            parse("images: [{repository: a, os: windows, build: '2022'}]").expect_err("no build");
        assert_eq!(
            wrong.to_string(),
            "images[0].build: \"2022\" is not a build such as 10.0.20348"
        );
        assert!(parse("images: [{repository: a, os: bsd}]").is_err());
    }
}
