from probatum.cli import main

raise SystemExit(main())
