//! MIME archives, with which cloud-init and nodeadm accept several documents at once.

use super::BootstrapError;

/// A shell script.
pub(super) const SHELL: &str = "text/x-shellscript; charset=\"us-ascii\"";
/// A NodeConfig of nodeadm.
pub(super) const NODE_CONFIG: &str = "application/node.eks.aws";

const BOUNDARY: &str = "//";

/// A document with its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    content_type: String,
    content: String,
}

impl Part {
    pub(super) fn new(content_type: &str, content: impl Into<String>) -> Self {
        Self {
            content_type: content_type.to_owned(),
            content: content.into(),
        }
    }

    /// Splits user data into parts: those of an archive, or the whole text, whose type `type_of` returns. Empty user data has no parts.
    pub(super) fn read(
        user_data: &str,
        type_of: impl FnOnce(&str) -> &'static str,
    ) -> Result<Vec<Self>, BootstrapError> {
        let start = user_data.trim_start();
        if start.is_empty() {
            return Ok(Vec::new());
        }
        if start.starts_with("MIME-Version:") || start.starts_with("Content-Type:") {
            return read_archive(start).map_err(|why| BootstrapError::UserData(why.to_owned()));
        }
        Ok(vec![Self::new(type_of(user_data), user_data)])
    }
}

/// Writes an archive.
pub(super) fn archive(parts: &[Part]) -> String {
    let mut text =
        format!("MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"{BOUNDARY}\"\n\n");
    for (index, part) in parts.iter().enumerate() {
        let newline = if index == 0 { "" } else { "\n" };
        text.push_str(&format!(
            "{newline}--{BOUNDARY}\nContent-Type: {}\n\n{}",
            part.content_type, part.content
        ));
    }
    text.push_str(&format!("\n--{BOUNDARY}--\n"));
    text
}

fn read_archive(text: &str) -> Result<Vec<Part>, &'static str> {
    // Archives that were written on Windows have other line ends.
    let text = text.replace('\r', "");
    let (head, body) = text
        .split_once("\n\n")
        .ok_or("a MIME archive has an empty line after its headers")?;
    let content_type = header(head, "content-type").ok_or("it has no Content-Type header")?;
    if !content_type.to_ascii_lowercase().starts_with("multipart/") {
        return Err("it is not in multipart MIME format");
    }
    let boundary = parameter(content_type, "boundary").ok_or("its Content-Type has no boundary")?;
    let delimiter = format!("--{boundary}");
    let mut parts: Vec<Vec<&str>> = Vec::new();
    for line in body.split('\n') {
        let end = line.trim_end();
        match end.strip_prefix(delimiter.as_str()) {
            Some("") => parts.push(Vec::new()),
            Some("--") => break,
            // Text before the first delimiter belongs to no part.
            _ => parts
                .iter_mut()
                .last()
                .into_iter()
                .for_each(|p| p.push(line)),
        }
    }
    let all = parts.iter().map(|lines| lines.join("\n"));
    // The last delimiter may lack its closing dashes, which leaves an empty part.
    let all = all.filter(|part| !part.trim().is_empty());
    all.map(|part| {
        let (head, content) = match part.strip_prefix('\n') {
            Some(content) => ("", content),
            None => part
                .split_once("\n\n")
                .ok_or("a part of it has no empty line after its headers")?,
        };
        let content_type = header(head, "content-type").unwrap_or("text/plain");
        Ok(Part::new(content_type, content))
    })
    .collect()
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.trim().eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

fn parameter<'a>(value: &'a str, name: &str) -> Option<&'a str> {
    value.split(';').skip(1).find_map(|parameter| {
        let (key, value) = parameter.split_once('=')?;
        let value = value.trim().trim_matches('"');
        key.trim().eq_ignore_ascii_case(name).then_some(value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_read_as_it_was_written() {
        let parts = vec![
            Part::new(SHELL, "#!/bin/bash\necho a\n"),
            Part::new(NODE_CONFIG, "kind: NodeConfig"),
        ];
        let read = Part::read(&archive(&parts), |_| SHELL).expect("an archive");
        assert_eq!(read, parts);
    }

    #[test]
    fn what_is_no_archive_is_told_so() {
        let read = |text: &str| Part::read(text, |_| SHELL).map_err(|error| error.to_string());
        let plain = read("echo a").expect("a script");
        assert_eq!(plain, [Part::new(SHELL, "echo a")]);
        assert_eq!(read("  \n"), Ok(Vec::new()));
        let refused = read("MIME-Version: 1.0\nContent-Type: text/plain\n\nhi");
        assert!(refused.is_err_and(|why| why.contains("not in multipart")));
        let refused = read("Content-Type: multipart/mixed\n\n--a\n\nhi\n--a--");
        assert!(refused.is_err_and(|why| why.contains("no boundary")));
    }
}
