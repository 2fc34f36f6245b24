//! A page of the documentation: its links, headings, code spans and command lines.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

/// Endings of file names in paths on pages.
const ENDINGS: &[&str] = &[
    "rs", "md", "yaml", "yml", "toml", "sh", "json", "patch", "pl", "svg", "txt",
];

/// The top folder of the checkout.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The text of a file of the checkout.
pub(crate) fn file(path: &str) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// One page.
pub(crate) struct Page {
    /// Path from the top folder.
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)
    }
}

/// The pages whose names are checked: README.md, the other pages of the top folder, and `docs`.
pub(crate) fn own() -> Vec<Page> {
    let mut pages = Vec::new();
    for folder in ["", "docs"] {
        let entries = std::fs::read_dir(root().join(folder)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.filter(|name| name.ends_with(".md")).collect();
        names.sort();
        let paths = names.iter().map(|name| Path::new(folder).join(name));
        pages.extend(paths.map(|path| Page::read(&path)));
    }
    pages
}

/// The pages whose links are checked.
pub(crate) fn all() -> Vec<Page> {
    let further = [
        "charts/muxtunnel/README.md",
        "crds/README.md",
        "operator/README.md",
    ];
    let further = further.map(|path| Page::read(Path::new(path)));
    own().into_iter().chain(further).collect()
}

impl Page {
    /// Reads the page at a path from the top folder.
    pub(crate) fn read(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            text: file(path.to_str().unwrap()),
        }
    }

    /// The page's folder, from the top folder.
    pub(crate) fn folder(&self) -> &Path {
        self.path.parent().unwrap()
    }

    /// The lines of the page. The flag: whether the line is in a fenced or an indented code block.
    fn lines(&self) -> Vec<(&str, bool)> {
        let (mut fenced, mut indented, mut before) = (false, false, "");
        let mut lines = Vec::new();
        for line in self.text.lines() {
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
                lines.push((line, true));
            } else {
                // An indented block follows an empty line or a heading. Other indented lines
                // continue a list.
                let begins = before.is_empty() || before.starts_with('#') || indented;
                indented = !fenced && line.starts_with("    ") && begins;
                lines.push((line, fenced || indented));
            }
            before = line;
        }
        lines
    }

    /// The targets of the page's links.
    pub(crate) fn links(&self) -> Vec<String> {
        let prose = self.prose();
        let pieces = prose.split("](").skip(1);
        let targets = pieces.filter_map(|piece| Some(piece.split_once(')')?.0.to_owned()));
        targets.collect()
    }

    /// The anchors of the page's headings, as GitHub computes them.
    pub(crate) fn anchors(&self) -> BTreeSet<String> {
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        let headings = self.lines().into_iter().filter(|(_, code)| !code);
        let headings = headings.filter_map(|(line, _)| {
            let text = line.trim_start_matches('#');
            (text.len() < line.len()).then(|| text.strip_prefix(' '))?
        });
        headings
            .map(|heading| {
                let anchor = anchor(heading);
                let times = seen.entry(anchor.clone()).or_default();
                *times += 1;
                match *times {
                    1 => anchor,
                    times => format!("{anchor}-{}", times - 1),
                }
            })
            .collect()
    }

    /// The text of the page without code blocks.
    fn prose(&self) -> String {
        let lines = self.lines().into_iter();
        let prose = lines.map(|(line, code)| if code { "" } else { line });
        prose.collect::<Vec<_>>().join("\n")
    }

    /// The texts between backticks. A span ends in its paragraph, or in its row of a table.
    pub(crate) fn code_spans(&self) -> Vec<String> {
        let prose = self.prose();
        let mut paragraphs = vec![String::new()];
        for line in prose.lines() {
            let row = line.starts_with('|') || line.trim_start().starts_with("- ");
            if line.is_empty() || row {
                paragraphs.push(String::new());
            }
            if let Some(paragraph) = paragraphs.last_mut() {
                paragraph.push_str(line);
                paragraph.push(' ');
            }
        }
        let spans = paragraphs.iter().flat_map(|text| {
            let pieces: Vec<_> = text.split('`').collect();
            let spans = pieces.into_iter().skip(1).step_by(2);
            spans.map(|span| span.trim().to_owned()).collect::<Vec<_>>()
        });
        spans.filter(|span| !span.is_empty()).collect()
    }

    /// The command lines of the page's code blocks and code spans. Continued lines are joined, and
    /// the prompt is removed.
    pub(crate) fn command_lines(&self) -> Vec<String> {
        let lines = self.lines().into_iter();
        let code = lines.map(|(line, code)| if code { line.trim() } else { "" });
        let code = code.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
        let lines = code
            .lines()
            .map(|line| line.strip_prefix("$ ").unwrap_or(line));
        let lines = lines.map(str::to_owned).filter(|line| !line.is_empty());
        lines.chain(self.code_spans()).collect()
    }
}

/// The anchor of a heading: its letters and digits in lower case, spaces as hyphens.
fn anchor(heading: &str) -> String {
    let mut text = heading.replace('`', "");
    while let Some((before, rest)) = text.split_once("](") {
        let (word, end) = (
            before.replace('[', ""),
            rest.split_once(')').unwrap_or(("", "")).1,
        );
        text = format!("{word}{end}");
    }
    let kept = text
        .trim()
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// The paths of files in a code span, with `{a,b}` expanded. A path has a `/`. In addition, its
/// first name is a folder of the checkout, or its last name has the ending of a file.
pub(crate) fn paths(span: &str) -> Vec<String> {
    let word = span.split_whitespace().next().unwrap_or_default();
    let word = word.split(['#', '<']).next().unwrap_or_default();
    let word = word.trim_end_matches('/').trim_start_matches("../");
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./{},".contains(c);
    if !span.contains('/') || word.starts_with('/') || !word.chars().all(plain) {
        return Vec::new();
    }
    let first = word.split('/').next().unwrap_or_default();
    let last = word.rsplit(['/', ',', '}']).next().unwrap_or_default();
    let ending = last.rsplit_once('.').map(|(_, ending)| ending);
    let of_the_checkout = root().join(first).is_dir() && first != "target";
    if !of_the_checkout && !ending.is_some_and(|ending| ENDINGS.contains(&ending)) {
        return Vec::new();
    }
    alternatives(word)
}

/// Expands `a/{b,c}/d` to `a/b/d` and `a/c/d`.
fn alternatives(path: &str) -> Vec<String> {
    let Some((before, rest)) = path.split_once('{') else {
        return vec![path.to_owned()];
    };
    let (inner, after) = rest.split_once('}').unwrap_or((rest, ""));
    let one = inner
        .split(',')
        .map(|name| format!("{before}{name}{after}"));
    one.flat_map(|path| alternatives(&path)).collect()
}

/// All files of the checkout, as paths with `/` from its top folder.
pub(crate) fn files() -> Vec<String> {
    let mut files = Vec::new();
    walk(&root(), "", &mut |name, _| files.push(name.to_owned()));
    files
}

/// The texts of the file at a path, or of all files below a folder, whose names end with `ending`.
pub(crate) fn texts(path: &Path, ending: &str) -> Vec<String> {
    if path.is_file() {
        return vec![std::fs::read_to_string(path).unwrap()];
    }
    let mut texts = Vec::new();
    walk(path, "", &mut |name, path| {
        if name.ends_with(&format!(".{ending}")) {
            texts.push(std::fs::read_to_string(path).unwrap());
        }
    });
    texts
}

fn walk(folder: &Path, prefix: &str, visit: &mut impl FnMut(&str, &Path)) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let kind = entry.file_type().unwrap();
        let (path, name) = (entry.path(), format!("{prefix}/{name}"));
        if kind.is_dir() && !["/target", "/.git"].contains(&name.as_str()) {
            walk(&path, &name, visit);
        } else if kind.is_file() {
            visit(&name, &path);
        }
    }
}
