//! Static tokens, as `--token-auth-file` of kube-apiserver reads them: `token,user,uid,"group1,group2"` a line.
//!
//! Only digests are kept, and looking one up compares with all of them in constant time: how long it takes tells nothing of a token.

use std::fmt;

use mullion_kinds::request::User;
use mullion_kube_text::golang::csv;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

/// Tokens and whom they stand for.
#[derive(Clone, Default)]
pub struct StaticTokens(Vec<([u8; 32], User)>);

/// The error for an invalid token file.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// The file is not valid CSV.
    #[error("the token file cannot be read: {why}")]
    Csv {
        /// Counted from 1.
        line: u64,
        /// The position and the cause, in the words of Go's `encoding/csv`.
        why: String,
    },
    /// A line without the first three columns.
    #[error(
        "line {line} of the token file has {columns} columns: token, user name and uid are needed, groups may follow"
    )]
    Columns {
        /// Counted from 1.
        line: u64,
        /// The number of columns found.
        columns: usize,
    },
}

impl StaticTokens {
    /// Reads a token file as kube-apiserver does: a record without a token is passed over, and of a token that is there twice the last record
    /// counts; the log warns of both.
    ///
    /// # Errors
    /// It is malformed, or a record lacks a column. The error names the line, but never shows its content.
    pub fn from_csv(text: &str) -> Result<Self, TokenFileError> {
        Self::read(text, &mut |warning| tracing::warn!("{warning}"))
    }

    fn read(text: &str, warn: &mut dyn FnMut(String)) -> Result<Self, TokenFileError> {
        let mut tokens: Vec<([u8; 32], User)> = Vec::new();
        for record in csv::records(text) {
            let csv::Record { line, fields } = record.map_err(|error| TokenFileError::Csv {
                line: error.line,
                why: error.to_string(),
            })?;
            let [token, name, uid, more @ ..] = &fields[..] else {
                let columns = fields.len();
                return Err(TokenFileError::Columns { line, columns });
            };
            if token.is_empty() {
                warn(format!(
                    "line {line} of the token file has an empty token and is passed over"
                ));
                continue;
            }
            let groups = more.first().map(|groups| groups.split(','));
            let user = User {
                name: name.clone(),
                uid: uid.clone(),
                groups: groups.into_iter().flatten().map(str::to_owned).collect(),
                ..User::default()
            };
            let digest = digest(token);
            let before = tokens.len();
            tokens.retain(|(other, _)| *other != digest);
            if tokens.len() < before {
                warn(format!(
                    "line {line} of the token file has a token that an earlier line has: this line counts"
                ));
            }
            tokens.push((digest, user));
        }
        Ok(StaticTokens(tokens))
    }

    /// Returns the user of a token, in time that does not depend on which token matches.
    pub(crate) fn find(&self, token: &str) -> Option<&User> {
        if self.0.is_empty() {
            return None;
        }
        let wanted = digest(token);
        let (mut found, mut at) = (Choice::from(0), 0_u64);
        for (index, (other, _)) in self.0.iter().enumerate() {
            let same = other.ct_eq(&wanted);
            // No early exit: the time must not tell how far down the file a token stands.
            at.conditional_assign(&(index as u64), same);
            found |= same;
        }
        bool::from(found).then(|| &self.0[at as usize].1)
    }
}

impl fmt::Debug for StaticTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StaticTokens({} tokens)", self.0.len())
    }
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_user_uid_and_groups() {
        let text = "t1,jane,1,\"dev,ops\"\nt2,joe,2\n";
        let tokens = StaticTokens::from_csv(text).unwrap();
        let jane = tokens.find("t1").unwrap();
        assert_eq!((jane.name.as_str(), jane.uid.as_str()), ("jane", "1"));
        assert_eq!(jane.groups, ["dev", "ops"]);
        assert!(tokens.find("t2").unwrap().groups.is_empty());
        assert!(tokens.find("t3").is_none() && tokens.find("").is_none());
    }

    #[test]
    fn a_refused_file_names_the_line_and_not_the_token() {
        let error = StaticTokens::from_csv("good,a,1\nsecret,b\n").unwrap_err();
        assert_eq!(
            error.to_string(),
            "line 2 of the token file has 2 columns: token, user name and uid are needed, groups may follow"
        );
        let error = StaticTokens::from_csv("good,a,1\nq,joe,1,\"g1\nsecret,b,2\n").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the token file cannot be read: record on line 2; parse error on line 3, column 12: extraneous or missing \" in quoted-field"
        );
        let tokens = StaticTokens::from_csv("good,a,1\n").unwrap();
        assert_eq!(format!("{tokens:?}"), "StaticTokens(1 tokens)");
    }

    #[test]
    fn an_empty_token_is_passed_over_and_the_last_of_equal_ones_counts_with_a_warning() {
        let mut warnings = Vec::new();
        let text = "t,a,1\n\n,b,2\n\"t\",c,3\n";
        let tokens = StaticTokens::read(text, &mut |warning| warnings.push(warning)).unwrap();
        assert_eq!(tokens.find("t").unwrap().name, "c");
        assert_eq!(tokens.0.len(), 1);
        assert_eq!(
            warnings,
            [
                "line 3 of the token file has an empty token and is passed over",
                "line 4 of the token file has a token that an earlier line has: this line counts",
            ]
        );
    }
}
