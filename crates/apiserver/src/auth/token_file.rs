//! Static tokens, as `--token-auth-file` of kube-apiserver reads them: `token,user,uid,"group1,group2"` a line.
//!
//! Only digests are kept, and looking one up compares with all of them in constant time: how long it takes tells nothing of a token.

use std::fmt;

use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use crate::admission::User;

/// Tokens and whom they stand for.
#[derive(Clone, Default)]
pub struct StaticTokens(Vec<([u8; 32], User)>);

/// What is wrong with a token file.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// Not comma-separated values.
    #[error("the token file cannot be read: {0}")]
    Csv(#[from] csv::Error),
    /// A line without the first three columns.
    #[error(
        "line {line} of the token file has {columns} columns: token, user name and uid are needed, groups may follow"
    )]
    Columns {
        /// Counted from 1.
        line: u64,
        /// How many there are.
        columns: usize,
    },
    /// A line without a token.
    #[error("line {line} of the token file has an empty token")]
    Empty {
        /// Counted from 1.
        line: u64,
    },
}

impl StaticTokens {
    /// Reads a token file. Of a token that is there twice the last line counts.
    ///
    /// # Errors
    /// A line lacks a column or a token. The error names the line, never what is in it.
    pub fn from_csv(text: &str) -> Result<Self, TokenFileError> {
        let mut tokens: Vec<([u8; 32], User)> = Vec::new();
        let mut reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .trim(csv::Trim::Headers)
            .from_reader(text.as_bytes());
        for record in reader.records() {
            let record = record?;
            let line = record.position().map_or(0, csv::Position::line);
            let (Some(token), Some(name), Some(uid)) =
                (record.get(0), record.get(1), record.get(2))
            else {
                let columns = record.len();
                return Err(TokenFileError::Columns { line, columns });
            };
            if token.is_empty() {
                return Err(TokenFileError::Empty { line });
            }
            let groups = record.get(3).unwrap_or_default().split(',');
            let user = User {
                name: name.to_owned(),
                uid: uid.to_owned(),
                groups: groups
                    .map(str::trim)
                    .filter(|group| !group.is_empty())
                    .map(str::to_owned)
                    .collect(),
                ..User::default()
            };
            let digest = digest(token);
            tokens.retain(|(other, _)| *other != digest);
            tokens.push((digest, user));
        }
        Ok(StaticTokens(tokens))
    }

    /// Whom a token stands for.
    pub(crate) fn find(&self, token: &str) -> Option<&User> {
        if self.0.is_empty() {
            return None;
        }
        let wanted = digest(token);
        let (mut found, mut at) = (Choice::from(0), 0_u64);
        for (index, (other, _)) in self.0.iter().enumerate() {
            let same = other.ct_eq(&wanted);
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
        let text = "t1,jane,1,\"dev, ops\"\nt2,joe,2\n";
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
        let error = StaticTokens::from_csv(",a,1\n").unwrap_err();
        assert_eq!(
            error.to_string(),
            "line 1 of the token file has an empty token"
        );
        let tokens = StaticTokens::from_csv("good,a,1\n").unwrap();
        assert_eq!(format!("{tokens:?}"), "StaticTokens(1 tokens)");
    }
}
