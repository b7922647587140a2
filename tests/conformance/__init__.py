"""What a node answers, recorded: every engine must answer the same calls of the same scenes alike.

A scene is a node at one moment: what it holds, and what it knows of the fleet. `scenes` has them, `calls` asks them,
`recorded/` has the answers. An engine takes part as a `subject.Node`.
"""
