std = "lua54"
max_line_length = 80
files["spec"] = { std = "+busted", max_line_length = 120 }
exclude_files = { "build" }
