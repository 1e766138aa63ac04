"""Pages for people: HTML from templates, charts as SVG in the colors of their page. No page asks for anything from elsewhere."""
